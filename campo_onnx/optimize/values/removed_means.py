"""Means that are taken off: over the batch, or weighted by shares that add up to one."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    MOVES_AND_SIGNS,
    SCALES,
    SHARES,
    SUMS_OF_FEW,
    reduced_axes,
    summed_input,
)
from campo_onnx.optimize.values.walk import Labels, carried

_GRADIENTS = op_keys("com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13")
_GATED = op_keys("com.microsoft:GatedAdd")  # x + y * gate
_DIVIDES = op_keys("Div Reciprocal")
_NORMALIZES_BY_MEAN = op_keys("BatchNormalization")
_RANK_OF_TOKENS = 3  # samples, tokens, features; images have one more
_MOST_FACTORS = 8  # a longer product counts as one factor


class _Sum(NamedTuple):
    """A sum of products along rows, and by what it has been multiplied since, element by element."""

    terms: frozenset[str]
    factors: frozenset[str] = frozenset()
    is_over_samples: bool = False


def means_removed(values: GraphValues) -> Mapping[str, str]:
    """Find shares, sums and differences of ``y * g - y * sum(y * g)``, ``g - sum(y * g)``, ``g - mean(g)``.

    Rows of keys and values that are much alike give a gradient ``g`` of which most is the same all along a
    row, and cancels. A rounded sum leaves the same part of it in the whole row, which adds up in the product
    that follows, and so do shares ``y`` that are alike, as attention begins with: they round alike, and no
    longer add up to one. Roundings of ``g`` and ``y * g`` differ from element to element, and average out.

    Shares ``y`` come from a softmax, or are ``e / sum(e)``; factors that are the same all along a row do not
    count. Means are those over samples and tokens, which the gradient of a weight sums over. Not meant are
    those over features, which are rounded token by token, nor those over images: inputs of a convolution have
    less in common, and the gradients of batch normalizations were right in FP16 and BF16.
    """
    search, nodes = _Search(values), Labels()
    for node in values.view.nodes:
        search.add(node)
        if search.removes_weighted_mean(node):
            nodes.mark((node.name, *search.behind(node)), node.outputs[0])
        elif mean := search.mean_over_samples(node):
            nodes.mark((node.name, *search.computing(mean, node)), node.outputs[0])
    return nodes


class _Search:
    """Tensors by what they are, up to views, signs, and rows that a mask replaces."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._factors: dict[str, frozenset[str]] = {}  # of a product, element by element
        self._sums: dict[str, _Sum] = {}
        self._rows: set[str] = set()  # what is the same all along a row: sums, and what is computed of them
        self._summed: dict[str, str] = {}  # by its sum
        self._divided: set[str] = set()  # what is divided by its sum
        self._origins: dict[str, str] = {}

    def add(self, node: OpNode) -> None:
        """Take in a product, a sum, or what is computed of sums only."""
        if not node.outputs:
            return
        output = node.outputs[0]
        origins = [self._origin(t) for t in node.inputs if t]
        varying = [t for t in origins if not self._values.is_constant(t) and not self._is_number(t)]
        wide = [t for t in varying if t not in self._rows]
        if node.op in _DIVIDES and (divided := self._summed.get(origins[-1])):
            self._divided.add(divided)
        if (summed := summed_input(node, self._view)) is not None:
            self._summed[output] = origins[0] if summed == node.inputs[0] else self._origin(summed)
            earlier = self._sums.get(self._summed[output])  # a sum in two parts
            terms = earlier.terms if earlier else self._factors_of(self._summed[output])
            self._sums[output] = _Sum(terms, is_over_samples=self._is_over_samples(node))
            self._rows.add(output)
        elif node.op in SCALES and (node.op.op_type == "Mul" or origins[1] not in wide):
            factors = frozenset[str]().union(*map(self._factors_of, wide))
            if (total := self._only_sum(origins if node.op.op_type == "Mul" else origins[:1])) is not None:
                self._sums[output] = total._replace(factors=total.factors | factors)
            elif wide and len(factors) <= _MOST_FACTORS:
                self._factors[output] = factors
        if varying and not wide:
            self._rows.add(output)
            if len(varying) == 1 and varying[0] in self._summed:  # a sum and an epsilon
                self._summed.setdefault(output, self._summed[varying[0]])
        if (origin := self._origin_behind(node)) is not None:
            self._origins[output] = origin

    def removes_weighted_mean(self, node: OpNode) -> bool:
        """Whether a node takes a mean weighted by shares off what it is the mean of, or off its product."""
        if node.op in _GRADIENTS:
            return True
        if node.op in _GATED:
            base, *factors = (self._origin(t) for t in node.inputs)
            total = self._only_sum(factors)
            if total is None:
                return False
            wide = (self._factors_of(t) for t in factors if t not in self._rows)
            return self._is_mean_of(base, total._replace(factors=total.factors.union(*wide)))
        return any(self._is_mean_of(y, self._sums[x]) for x, y in self._sums_met(node))

    def mean_over_samples(self, node: OpNode) -> str | None:
        """The mean over samples that a node of a training step takes off what it is the mean of."""
        if not self._values.scaling.forward:
            return None
        means = (x for x, y in self._sums_met(node) if self._sums[x].terms in self._addends(y))
        return next((x for x in means if x in self._rows and self._sums[x].is_over_samples), None)

    def computing(self, mean: str, reader: OpNode) -> Iterator[str]:
        """Nodes that compute a mean for its reader: its sum, and what is computed of that alone."""
        walk = Walk(t for t in reader.inputs if self._origin(t) == mean)
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is not None and self._origin(tensor) in self._rows:
                yield producer.name
                walk.add(producer.inputs)

    def behind(self, node: OpNode) -> Iterator[str]:
        """Nodes from shares to a difference whose rounding is the same all along a row.

        They are the softmax, sums, what is computed of sums only, and what multiplies by it.
        """
        walk = Walk(node.inputs)
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is None:
                continue
            if producer.op in SHARES:
                yield producer.name
                continue
            origin = self._origin(tensor)
            by_rows = not self._rows.isdisjoint(map(self._origin, producer.inputs))
            if origin in self._rows or origin in self._sums or by_rows:
                yield producer.name
            elif origin == tensor and tensor not in self._factors:
                continue
            walk.add(producer.inputs if producer.op in SCALES else carried(producer))

    def _sums_met(self, node: OpNode) -> Iterator[tuple[str, str]]:
        """The sums that a sum or difference of two takes in, each with the other term.

        So does a batch normalization with its mean and its input.
        """
        terms = node.inputs if node.op in SUMS_OF_FEW else ()
        if node.op in _NORMALIZES_BY_MEAN:
            terms = (node.inputs[0], node.inputs[3])
        if len(terms) == 2:
            a, b = (self._origin(t) for t in terms)
            yield from ((x, y) for x, y in ((a, b), (b, a)) if x in self._sums)

    def _addends(self, tensor: str) -> Iterator[frozenset[str]]:
        """Factors of a tensor and, where it is a sum of two, of each term: the other's mean may be zero."""
        yield self._factors_of(tensor)
        producer = self._view.producer.get(tensor)
        if producer is not None and producer.op in SUMS_OF_FEW:
            yield from (self._factors_of(self._origin(t)) for t in producer.inputs)

    def _is_over_samples(self, node: OpNode) -> bool:
        """Whether a sum is over samples or tokens and leaves features."""
        rank = len(self._view.shape(node.inputs[0]) or ())
        is_table = 2 <= rank <= _RANK_OF_TOKENS and node.op.op_type.startswith("Reduce")
        return is_table and rank - 1 not in reduced_axes(node, self._view)

    def _is_mean_of(self, base: str, total: _Sum) -> bool:
        weighted = len(total.terms) > 1
        factors = self._factors_of(base)
        return weighted and any(
            self._are_shares(t) and factors == total.factors | (total.terms - {t}) for t in total.terms
        )

    def _only_sum(self, tensors: list[str]) -> _Sum | None:
        sums = [self._sums[t] for t in tensors if t in self._sums]
        return sums[0] if len(sums) == 1 else None

    def _factors_of(self, tensor: str) -> frozenset[str]:
        return self._factors.get(tensor, frozenset((tensor,)))

    def _are_shares(self, tensor: str) -> bool:
        producer = self._view.producer.get(tensor)
        return tensor in self._divided or (producer is not None and producer.op in SHARES)

    def _is_number(self, tensor: str) -> bool:
        info = self._view.tensors.get(tensor)
        return info is not None and info.elements == 1

    def _origin(self, tensor: str) -> str:
        return self._origins.get(tensor, tensor)

    def _origin_behind(self, node: OpNode) -> str | None:
        """The origin of what a node only moves, changes the sign of, or replaces by constants in places."""
        if node.op in MOVES_AND_SIGNS:
            return self._origin(node.inputs[0])
        if node.op.label != "Where":
            return None
        varying = [t for t in node.inputs[1:] if not self._values.is_constant(t)]
        return self._origin(varying[0]) if len(varying) == 1 else None
