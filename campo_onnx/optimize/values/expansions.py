"""Products and sums multiplied out: what each tensor adds up, and what is the same all along a row."""

from collections.abc import Iterator
from itertools import permutations, product
from typing import NamedTuple

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES,
    MOVES_AND_SIGNS,
    SCALES,
    SHARES,
    SUMS_OF_FEW,
    WEIGHTED,
    axes_before,
    is_row_by_row,
    summed_axes,
    summed_input,
)

_GATED = op_keys("com.microsoft:GatedAdd")  # x + y * gate
_DIVIDES = op_keys("Div Reciprocal")
_NORMALIZES_BY_MEAN = op_keys("BatchNormalization")
_LOGARITHMS = op_keys("LogSoftmax ReduceLogSumExp")
_GIVES_ITS_MEAN = op_keys("LayerNormalization")
_RANK_OF_TOKENS = 3  # samples, tokens or positions, features; images have one more
_MOST_FACTORS = 8  # a longer product counts as one factor
_MOST_ADDENDS = 8


class Addend(NamedTuple):
    """A product of tensors, or a sum of products along rows times tensors, element by element."""

    factors: frozenset[str] = frozenset()  # but for what is the same all along a row
    sign: int = 1
    terms: frozenset[str] = frozenset()  # factors of the products that are summed
    rank: int = 0  # of what is summed
    is_over_samples: bool = False

    def times(self, other: "Addend") -> "Addend | None":
        """Multiply; None if both are sums, or if there are too many factors."""
        factors = self.factors | other.factors
        if (self.terms and other.terms) or len(factors) > _MOST_FACTORS:
            return None
        return (self if self.terms else other)._replace(factors=factors, sign=self.sign * other.sign)


Addends = tuple[Addend, ...]


class Expansions:
    """The addends of tensors, up to views and to what replaces parts of them by constants.

    Those of ``d = g - p * ReduceSum(g * p)`` are ``g`` and, with a minus, ``p`` times the sum of ``g * p``.
    """

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._addends: dict[str, Addends] = {}  # of a sum of two the first stands for all of it
        self._products: set[str] = set()
        self._rows: set[str] = set()  # what is the same all along a row: sums, and what is computed of them
        self._summed: dict[str, str] = {}  # by its sum
        self._shares: set[str] = set()  # what is divided by its sum
        self._logarithms: set[str] = set()  # of shares, and of the sums that normalize them
        self._origins: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of products of matrices, by what they multiply
        self._multiplied: dict[str, tuple[frozenset[str], frozenset[str]]] = {}  # by that name
        self._of_factors: dict[frozenset[frozenset[str]], str] = {}  # those names, by the factors
        convolutions = (n for n in self._view.nodes if n.op in WEIGHTED - CONTRACTIONS)
        shapes = {self._view.shape(t) for n in convolutions for t in (n.inputs[0], n.outputs[0])}
        self._of_convolutions = {s for s in shapes if s and len(s) == _RANK_OF_TOKENS}

    def add(self, node: OpNode) -> None:
        """Expand the output of a node whose inputs are expanded."""
        self._add_rows(node)
        if node.op in CONTRACTIONS and len(node.inputs) == 2:
            one, other = (self.of(t)[0].factors for t in node.inputs)
            self._names[node.outputs[0]] = name = self._matrix_product(one, other)
            self._multiplied[name] = one, other
        output, divisor = node.outputs[0], self.origin(node.inputs[-1]) if node.inputs else ""
        if (moved := self._moved(node)) is not None:
            self._origins[output] = self.origin(moved)
            self._addends[output] = self.of(moved, -1 if node.op.label in ("Neg", "Sub") else 1)
        elif terms := self.terms(node):
            own = () if output in self._rows else self.of(output)
            self._addends[output] = (*own, *(a for term in terms for a in term))[:_MOST_ADDENDS]
        elif node.op in SCALES and (node.op.label == "Mul" or self._is_scale(divisor)):
            factors, sign = (
                (node.inputs, 1) if node.op.label == "Mul" else (node.inputs[:1], self._sign(divisor))
            )
            if products := self._product(*factors, sign=sign):
                self._addends[output] = products
                self._products.add(output)

    def of(self, tensor: str, sign: int = 1) -> Addends:
        """Give the addends of a tensor, or of its negative; one that is not expanded is its only factor."""
        if (addends := self._addends.get(tensor)) is not None:
            return addends if sign > 0 else tuple(a._replace(sign=-a.sign) for a in addends)
        if not tensor or self._is_scale(tensor):
            return (Addend(sign=sign * self._sign(tensor)),)
        return (Addend(frozenset((self._names.get(tensor, tensor),)), sign),)

    def expanded(self, tensor: str) -> Addends:
        """Give the addends of a tensor; none if it is not expanded."""
        return self._addends.get(tensor, ())

    def terms(self, node: OpNode) -> list[Addends]:
        """Give the addends of each term of a sum or difference of a few, or of a batch normalization."""
        if node.op in SUMS_OF_FEW:
            last = -1 if node.op.label == "Sub" else 1
            return [self.of(t, last if i else 1) for i, t in enumerate(node.inputs)]
        if node.op in _GATED:
            return [self.of(node.inputs[0]), self._product(*node.inputs[1:])]
        if node.op in _NORMALIZES_BY_MEAN:
            data, scale, bias, mean, variance = node.inputs[:5]
            removed = self._product(mean, scale, variance, sign=-1)
            return [self._product(data, scale, variance), removed, self.of(bias)]
        return []

    def cancel(self, tensor: str, addends: set[Addend]) -> None:
        """Leave out addends of a tensor."""
        self._addends[tensor] = tuple(a for a in self._addends[tensor] if a not in addends)

    def origin(self, tensor: str) -> str:
        """The tensor that another one is a view or the negative of."""
        return self._origins.get(tensor, tensor)

    def summed(self, tensor: str) -> str | None:
        """The tensor that another one is the sum of."""
        return self._summed.get(tensor)

    def is_row(self, tensor: str) -> bool:
        """Whether a tensor is the same all along a row."""
        return self.origin(tensor) in self._rows

    def is_product(self, tensor: str) -> bool:
        """Whether a tensor is a product, element by element."""
        return tensor in self._products

    def has_weighted_mean(self, tensor: str) -> bool:
        """Whether a tensor is a product, element by element, with means that shares weight."""
        return any(len([*self._summands(a.factors)]) > 1 for a in self.expanded(tensor)[:1])

    def are_shares(self, tensor: str) -> bool:
        """Whether the elements of each row of a tensor add up to one."""
        return tensor in self._shares or self.is_normalized(tensor)

    def is_normalized(self, tensor: str) -> bool:
        """Whether a tensor comes from a softmax, or is the exponential of the logarithm of shares."""
        producer = self._view.producer.get(tensor)
        return producer is not None and (
            producer.op in SHARES or (producer.op.label == "Exp" and producer.inputs[0] in self._logarithms)
        )

    def is_logarithm(self, tensor: str) -> bool:
        """Whether a tensor is the logarithm of shares, or of the sum that normalizes them."""
        return tensor in self._logarithms

    def multiplies_shares(self, tensor: str) -> bool:
        """Whether a tensor is a product, element by element, with shares."""
        return any(map(self.are_shares, self.of(tensor)[0].factors))

    def _add_rows(self, node: OpNode) -> None:
        """Take in a sum, and what is computed of sums only."""
        output, origins = node.outputs[0], [self.origin(t) for t in node.inputs if t]
        varying = [t for t in origins if not self._values.is_constant(t) and not self._is_number(t)]
        if node.op in _DIVIDES and (divided := self._summed.get(origins[-1])):
            self._shares.add(divided)
        if self._gives_logarithm(node, origins):
            self._logarithms.add(output)
        if summed := self._sum(node):
            self._addends[output] = summed
            self._rows.add(output)
        elif varying and self._rows.issuperset(varying):
            self._rows.add(output)
            if len(varying) == 1 and varying[0] in self._summed:  # a sum and an epsilon
                self._summed.setdefault(output, self._summed[varying[0]])
        if node.op in _GIVES_ITS_MEAN and any(node.outputs[1:2]):
            rank = len(self._view.shape(node.inputs[0]) or ())
            axes = [*range(rank)][int(node.attributes.get("axis", -1)) :]
            self._addends[node.outputs[1]] = self._total((node.inputs[0],), axes)
            self._rows.add(node.outputs[1])

    def _gives_logarithm(self, node: OpNode, origins: list[str]) -> bool:
        """Whether a node takes the logarithm of a sum, or moves one or adds to it."""
        if node.op in MOVES_AND_SIGNS or node.op in SUMS_OF_FEW:
            return not self._logarithms.isdisjoint(node.inputs)
        return node.op in _LOGARITHMS or (node.op.label == "Log" and origins[0] in self._summed)

    def _sum(self, node: OpNode) -> Addends:
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
        self._summed[node.outputs[0]] = self.origin(tensors[0])
        axes = summed_axes(node, [*node.inputs].index(tensors[0]), self._view)
        return tuple(a._replace(sign=a.sign * sign) for a in self._total(tensors, axes))

    def _total(self, tensors: tuple[str, ...], axes: list[int]) -> Addends:
        """A sum of the product of some tensors along axes of the first; of a sum, in two parts."""
        before, axes_there = axes_before(tensors[0], axes, self._view)
        has_positions = any(axis > 1 for axis in axes_there)  # those of an image, where each is a column, too
        rank = len(before if has_positions else self._view.shape(tensors[0]) or ())
        is_over_samples = self._are_samples(tensors[0], axes)
        parts = [a for a in self.of(tensors[0]) if a.terms] if len(tensors) == 1 else []
        for one in [] if parts else self._product(*tensors)[:1]:
            parts = [Addend(frozenset(), one.sign, terms, rank) for terms in self._summands(one.factors)]
        return tuple(
            a._replace(is_over_samples=a.rank <= _RANK_OF_TOKENS and (is_over_samples or a.is_over_samples))
            for a in parts
        )

    def _summands(self, factors: frozenset[str]) -> Iterator[frozenset[str]]:
        """Factors whose product is summed; of ``g * (p @ v)`` with shares ``p``, also ``p * (g @ v.T)``.

        FlashAttention sums the former over features, which is the sum of the latter over keys.
        """
        yield factors
        for factor in sorted(factors & self._multiplied.keys()):
            for shares, rows in permutations(self._multiplied[factor]):
                if any(map(self.are_shares, shares)):
                    yield shares | {self._matrix_product(factors - {factor}, rows)}

    def _matrix_product(self, one: frozenset[str], other: frozenset[str]) -> str:
        """A short name for a product of matrices by its factors, however it is written or transposed."""
        return self._of_factors.setdefault(frozenset((one, other)), f"\0{len(self._of_factors)}")

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

    def _product(self, *tensors: str, sign: int = 1) -> Addends:
        """The addends of a product, that of the first ones first; none if there are too many factors."""
        products = [Addend(sign=sign)]
        for tensor in tensors:
            every = [a.times(b) for a, b in product(products, self.of(tensor))]
            products = [one for one in every if one is not None][:_MOST_ADDENDS] if every[0] else []
            if not products:
                break
        return tuple(products)

    def _moved(self, node: OpNode) -> str | None:
        """The tensor that a node only moves, changes the sign of, or replaces by constants in places."""
        if node.op in MOVES or node.op.label in ("Dropout", "Neg"):
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

    def _is_scale(self, tensor: str) -> bool:
        """Whether a tensor counts as no factor: a constant, a number, or the same all along a row."""
        return self._values.is_constant(tensor) or self._is_number(tensor) or tensor in self._rows

    def _is_number(self, tensor: str) -> bool:
        info = self._view.tensors.get(tensor)
        return info is not None and info.elements == 1

    def _sign(self, *tensors: str) -> int:
        """The sign of a product of constants, and of what is not known."""
        negative = [t for t in tensors if self._values.is_constant(t) and self._values.range(t).highest < 0.0]
        return -1 if len(negative) % 2 else 1
