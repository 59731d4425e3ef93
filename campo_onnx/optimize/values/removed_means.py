"""Means that are taken off: over the batch, or weighted by shares that add up to one."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES,
    SCALES,
    SHARES,
    SUMS_OF_FEW,
    WEIGHTED,
    axes_before,
    is_row_by_row,
    summed_axes,
    summed_input,
)
from campo_onnx.optimize.values.walk import Labels, carried

_GRADIENTS = op_keys("com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13")
_GATED = op_keys("com.microsoft:GatedAdd")  # x + y * gate
_DIVIDES = op_keys("Div Reciprocal")
_NORMALIZES_BY_MEAN = op_keys("BatchNormalization")
_GIVES_ITS_MEAN = op_keys("LayerNormalization")
_RANK_OF_TOKENS = 3  # samples, tokens or positions, features; images have one more
_MOST_FACTORS = 8  # a longer product counts as one factor
_MOST_ADDENDS = 8


class _Addend(NamedTuple):
    """A product of tensors, or a sum of products along rows times tensors, element by element."""

    factors: frozenset[str] = frozenset()  # but for what is the same all along a row
    sign: int = 1
    terms: frozenset[str] = frozenset()  # factors of the products that are summed
    rank: int = 0  # of what is summed
    is_over_samples: bool = False

    def times(self, other: "_Addend") -> "_Addend | None":
        """Multiply; None if both are sums, or if there are too many factors."""
        factors = self.factors | other.factors
        if (self.terms and other.terms) or len(factors) > _MOST_FACTORS:
            return None
        return (self if self.terms else other)._replace(factors=factors, sign=self.sign * other.sign)


_Addends = tuple[_Addend, ...]


def means_removed(values: GraphValues) -> Mapping[str, str]:
    """Find shares, sums and differences of ``y * g - y * sum(y * g)``, ``g - sum(y * g)``, ``g - mean(g)``.

    Rows of keys and values that are much alike give a gradient ``g`` of which most is the same all along a
    row, and cancels. A rounded sum leaves the same part of it in the whole row, which adds up in the product
    that follows, and so do shares ``y`` that are alike, as attention begins with: they round alike, and no
    longer add up to one. Roundings of ``g`` and ``y * g`` differ from element to element, and average out.

    Shares ``y`` come from a softmax, or are ``e / sum(e)``; factors that are the same all along a row do not
    count. Means are those over samples, tokens and positions, which the gradient of a weight sums over: axes
    before the last, the first and any other, and the last of tensors that are as large as what a convolution
    along positions reads or writes. What multiplies both ``g`` and its mean, as the scale of a batch
    normalization does, is needed as exactly. Not meant are sums of what comes out of attention, as
    FlashAttention computes them, means over features, which are rounded token by token, and those over
    images: inputs of a convolution have less in common, and the gradients of batch normalizations were right
    in FP16 and BF16.
    """
    search, nodes = _Search(values), Labels()
    for node in filter(lambda node: node.outputs, values.view.nodes):
        search.add(node)
        nodes.mark(search.removing(node), node.outputs[0])
    return nodes


class _Search:
    """Tensors by what they add up, up to views, and rows that a mask replaces."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._addends: dict[str, _Addends] = {}  # of a sum of two the first stands for all of it
        self._products: set[str] = set()
        self._rows: set[str] = set()  # what is the same all along a row: sums, and what is computed of them
        self._summed: dict[str, str] = {}  # by its sum
        self._divided: set[str] = set()  # what is divided by its sum
        self._origins: dict[str, str] = {}
        self._places = {node.name: place for place, node in enumerate(self._view.nodes)}
        self._walk = Walk[str](())  # behind differences
        convolutions = (n for n in self._view.nodes if n.op in WEIGHTED - CONTRACTIONS)
        shapes = {self._view.shape(t) for n in convolutions for t in (n.inputs[0], n.outputs[0])}
        self._of_convolutions = {s for s in shapes if s and len(s) == _RANK_OF_TOKENS}

    def add(self, node: OpNode) -> None:
        """Take in a product, a sum, or what is computed of sums only."""
        output = node.outputs[0]
        origins = [self._origin(t) for t in node.inputs if t]
        varying = [t for t in origins if not self._values.is_constant(t) and not self._is_number(t)]
        wide = [t for t in varying if t not in self._rows]
        if node.op in _DIVIDES and (divided := self._summed.get(origins[-1])):
            self._divided.add(divided)
        if summed := self._sum(node):
            self._addends[output] = summed
            self._rows.add(output)
        elif varying and not wide:
            self._rows.add(output)
            if len(varying) == 1 and varying[0] in self._summed:  # a sum and an epsilon
                self._summed.setdefault(output, self._summed[varying[0]])
        if node.op in _GIVES_ITS_MEAN and any(node.outputs[1:2]):
            rank = len(self._view.shape(node.inputs[0]) or ())
            axes = [*range(rank)][int(node.attributes.get("axis", -1)) :]
            self._addends[node.outputs[1]] = self._total((node.inputs[0],), axes)
            self._rows.add(node.outputs[1])
        if (moved := self._moved(node)) is not None:
            self._origins[output] = self._origin(moved)
            self._addends[output] = self._of(moved, -1 if node.op.label in ("Neg", "Sub") else 1)
        elif terms := self._terms(node):
            own = () if output in self._rows else self._of(output)
            self._addends[output] = (*own, *(a for term in terms for a in term))[:_MOST_ADDENDS]
        elif node.op in SCALES and (node.op.label == "Mul" or origins[1] not in wide):
            factors = node.inputs if node.op.label == "Mul" else node.inputs[:1]
            if products := self._product(*factors, sign=1 if len(factors) == 2 else self._sign(origins[1])):
                self._addends[output] = products
                self._products.add(output)

    def removing(self, node: OpNode) -> list[str]:
        """Nodes between a mean and a difference from it whose rounding is the same all along a row."""
        if node.op in _GRADIENTS:
            return [node.name, *self._behind(node.inputs[1:])]  # of (gradient, shares)
        names: list[str] = []
        removed: set[_Addend] = set()
        terms = self._terms(node)
        totals = [(i, a) for i, term in enumerate(terms) for a in term if a.terms]
        others = [(i, a) for i, term in enumerate(terms) for a in term if not a.terms] if totals else []
        of_factor: dict[str, list[tuple[int, _Addend]]] = {}
        for i, a in others:
            for factor in a.factors:
                of_factor.setdefault(factor, []).append((i, a))
        for place, total in totals:
            for its, other in dict.fromkeys(o for t in sorted(total.terms) for o in of_factor.get(t, ())):
                if place == its or total.sign == other.sign:
                    continue
                if self._is_weighted(total, other):
                    names += [node.name, *self._behind(node.inputs)]
                elif total.is_over_samples and total.terms | total.factors <= other.factors:
                    names += [node.name, *self._computing(total, other.factors - total.terms, node)]
                    removed.add(total)
        if removed:
            left = (a for a in self._addends[node.outputs[0]] if a not in removed)
            self._addends[node.outputs[0]] = tuple(left)
        return names

    def _terms(self, node: OpNode) -> list[_Addends]:
        """The addends of each term of a sum or difference of a few, or of a batch normalization."""
        if node.op in SUMS_OF_FEW:
            last = -1 if node.op.label == "Sub" else 1
            return [self._of(t, last if i else 1) for i, t in enumerate(node.inputs)]
        if node.op in _GATED:
            return [self._of(node.inputs[0]), self._product(*node.inputs[1:])]
        if node.op in _NORMALIZES_BY_MEAN:
            data, scale, bias, mean, variance = node.inputs[:5]
            removed = self._product(mean, scale, variance, sign=-1)
            return [self._product(data, scale, variance), removed, self._of(bias)]
        return []

    def _sum(self, node: OpNode) -> _Addends:
        """A sum over many values, also by a product with ones, or of the products of two rows."""
        sign, summed = 1, summed_input(node, self._view)
        tensors: tuple[str, ...] = () if summed is None else (summed,)
        if node.op in CONTRACTIONS and (len(node.inputs) == 2 or self._values.number(node.inputs[2]) == 0.0):
            numbers = [t for t in node.inputs[:2] if self._values.number(t) is not None]
            if numbers or is_row_by_row(node, self._view):
                tensors = tuple(t for t in node.inputs[:2] if t not in numbers)
                sign = self._sign(*numbers) * (-1 if float(node.attributes.get("alpha", 1.0)) < 0.0 else 1)
        if not tensors:
            return ()
        self._summed[node.outputs[0]] = self._origin(tensors[0])
        axes = summed_axes(node, [*node.inputs].index(tensors[0]), self._view)
        return tuple(a._replace(sign=a.sign * sign) for a in self._total(tensors, axes))

    def _total(self, tensors: tuple[str, ...], axes: list[int]) -> _Addends:
        """A sum of the product of some tensors along axes of the first; of a sum, in two parts."""
        before, axes_there = axes_before(tensors[0], axes, self._view)
        has_positions = any(axis > 1 for axis in axes_there)  # those of an image, where each is a column, too
        rank = len(before if has_positions else self._view.shape(tensors[0]) or ())
        is_over_samples = self._are_samples(tensors[0], axes)
        parts = [a for a in self._of(tensors[0]) if a.terms] if len(tensors) == 1 else []
        for one in [] if parts else self._product(*tensors)[:1]:
            parts = [_Addend(frozenset(), one.sign, one.factors, rank)]
        return tuple(
            a._replace(is_over_samples=a.rank <= _RANK_OF_TOKENS and (is_over_samples or a.is_over_samples))
            for a in parts
        )

    def _are_samples(self, tensor: str, axes: list[int]) -> bool:
        """Whether axes are those of samples, tokens or positions, and another is left, in a training step."""
        shape = self._view.shape(tensor) or ()
        rows = [axis for axis, size in enumerate(shape) if axis not in axes and size != 1]
        is_table = 2 <= len(shape) <= _RANK_OF_TOKENS and bool(axes) and bool(rows)
        if not self._values.scaling.forward or not is_table:
            return False
        before, axes_there = axes_before(tensor, axes, self._view)
        are_positions = before in self._of_convolutions and axes_there == [2]
        return len(shape) - 1 not in axes or 0 in axes_there or are_positions

    def _computing(self, total: _Addend, factors: frozenset[str], node: OpNode) -> Iterator[str]:
        """Nodes that compute a mean that a node takes off, and the factors of both of its terms.

        A factor by which a node multiplies on the way to one of them alone may not be rounded there.
        """
        walk, summed = Walk(node.inputs), set[str]()
        for tensor in walk:
            producer, addends = self._view.producer.get(tensor), self._addends.get(tensor, ())
            if producer is None or tensor != producer.outputs[0]:
                continue
            is_mean = any(a.terms == total.terms for a in addends)
            is_row = producer.op in MOVES and self._origin(tensor) in self._rows
            if is_mean or is_row or self._is_factor(tensor, factors):
                yield producer.name
                walk.add(producer.inputs)
            if is_mean and tensor in self._summed:
                summed.add(self._summed[tensor])
        on_one_side = self._on_one_side(summed, node.inputs, total.terms)
        for name in sorted(on_one_side) if summed else ():
            scales = self._view.node[name].inputs if self._view.node[name].op in SCALES else ()
            if any(self._origin(t) in self._rows or self._is_factor(t, factors) for t in scales):
                yield name

    def _is_factor(self, tensor: str, factors: frozenset[str]) -> bool:
        """Whether a tensor is a product of some of the factors."""
        return any(a.factors and a.factors <= factors for a in self._addends.get(tensor, ())[:1])

    def _on_one_side(self, ones: Iterable[str], others: Iterable[str], factors: frozenset[str]) -> set[str]:
        """Nodes that a product comes through to one of two groups of tensors only.

        They are the carriers: what moves, scales or adds to it. Last ones first, until all left lead to both.
        """
        sides: dict[int, int] = {}  # of the producers that are due, by place: 1, 2, or 3 for both
        due: list[int] = []
        unlike = 0

        def reach(tensors: Iterable[str], side: int) -> None:
            nonlocal unlike
            for tensor in tensors:
                producer = self._view.producer.get(tensor)
                if producer is None or not any(factors <= a.factors for a in self._addends.get(tensor, ())):
                    continue
                place = self._places[producer.name]
                before = sides.get(place, 0)
                if not before:
                    heappush(due, -place)
                sides[place] = before | side
                unlike += (before | side != 3) - (before in (1, 2))

        reach(ones, 1)
        reach(others, 2)
        names: set[str] = set()
        while due and unlike:
            place = -heappop(due)
            node, side = self._view.nodes[place], sides.pop(place)
            if side != 3:
                unlike -= 1
                names.add(node.name)
            reach(node.inputs, side)
        return names

    def _behind(self, tensors: Iterable[str]) -> Iterator[str]:
        """Nodes from shares to a difference whose rounding is the same all along a row, but for earlier ones.

        They are the softmax, sums, what is computed of sums only, and what multiplies by it.
        """
        walk = self._walk
        walk.add(tensors)
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is None:
                continue
            if producer.op in SHARES:
                yield producer.name
                continue
            origin = self._origin(tensor)
            by_rows = not self._rows.isdisjoint(map(self._origin, producer.inputs))
            if origin in self._rows or any(a.terms for a in self._of(tensor)[:1]) or by_rows:
                yield producer.name
            elif origin == tensor and tensor not in self._products:
                continue
            walk.add(producer.inputs if producer.op in SCALES else carried(producer))

    def _is_weighted(self, total: _Addend, other: _Addend) -> bool:
        """Whether a sum is a mean of something, weighted by shares."""
        return len(total.terms) > 1 and any(
            self._are_shares(t) and other.factors == total.factors | (total.terms - {t}) for t in total.terms
        )

    def _product(self, *tensors: str, sign: int = 1) -> _Addends:
        """The addends of a product, that of the first ones first; none if there are too many factors."""
        products = [_Addend(sign=sign)]
        for tensor in tensors:
            every = [a.times(b) for a, b in product(products, self._of(tensor))]
            products = [one for one in every if one is not None][:_MOST_ADDENDS] if every[0] else []
            if not products:
                break
        return tuple(products)

    def _of(self, tensor: str, sign: int = 1) -> _Addends:
        """The addends of a tensor, or of its negative."""
        if (addends := self._addends.get(tensor)) is not None:
            return addends if sign > 0 else tuple(a._replace(sign=-a.sign) for a in addends)
        is_scale = not tensor or self._values.is_constant(tensor) or self._is_number(tensor)
        if is_scale or tensor in self._rows:
            return (_Addend(sign=sign * self._sign(tensor)),)
        return (_Addend(frozenset((tensor,)), sign),)

    def _sign(self, *tensors: str) -> int:
        """The sign of a product of constants, and of what is not known."""
        negative = [t for t in tensors if self._values.is_constant(t) and self._values.range(t).highest < 0.0]
        return -1 if len(negative) % 2 else 1

    def _are_shares(self, tensor: str) -> bool:
        producer = self._view.producer.get(tensor)
        return tensor in self._divided or (producer is not None and producer.op in SHARES)

    def _is_number(self, tensor: str) -> bool:
        info = self._view.tensors.get(tensor)
        return info is not None and info.elements == 1

    def _origin(self, tensor: str) -> str:
        return self._origins.get(tensor, tensor)

    def _moved(self, node: OpNode) -> str | None:
        """The tensor that a node only moves, changes the sign of, or replaces by constants in places."""
        if node.op in MOVES or node.op.label == "Neg":
            return node.inputs[0]
        if node.op.label in ("Add", "Sub"):  # 0 - x, x + 0
            others = (1, 0) if node.op.label == "Add" else (1,)
            return next(
                (node.inputs[i] for i in others if self._values.number(node.inputs[1 - i]) == 0.0), None
            )
        if node.op.label != "Where":
            return None
        varying = [t for t in node.inputs[1:] if not self._values.is_constant(t)]
        return varying[0] if len(varying) == 1 else None
