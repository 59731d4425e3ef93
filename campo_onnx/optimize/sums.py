"""Squares and products that are summed: FP16 overflows on them or makes them zero before the sum."""

from collections.abc import Iterator, Mapping

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import UNKNOWN, ValueRange

_SUMS = frozenset(
    {
        *(OpKey("", op) for op in ("AveragePool", "CumSum", "GlobalAveragePool", "ReduceL1", "ReduceLogSum")),
        *(OpKey("", op) for op in ("ReduceMean", "ReduceSum")),
        OpKey("com.microsoft", "ReduceSumTraining"),
    }
)
_SUMS_OF_SQUARES = frozenset({OpKey("", "ReduceSumSquare"), OpKey("", "ReduceL2")})
_VIEWS = frozenset(
    OpKey("", op)
    for op in ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)
_SIGNS = frozenset({OpKey("", "Abs"), OpKey("", "Neg")})
_CARRIERS = _VIEWS | {OpKey("", op) for op in ("Add", "Concat", "Div", "Mul", "Neg", "Sum", "Slice", "Where")}
_CONTRACTIONS = frozenset(
    {OpKey("", op) for op in ("Einsum", "Gemm", "MatMul")} | {OpKey("com.microsoft", "FusedMatMul")}
)
_NORMALIZED = frozenset(
    OpKey("", op)
    for op in (
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("RMSNormalization", "SimplifiedLayerNormalization"),
    )
)
_MANY_TERMS = 16
_LONG = 4096
_KEEPING_NORMS = _VIEWS | {OpKey("", op) for op in ("Add", "Clip", "Max", "Sum")}
_TERMS_OF_A_BATCH = 1 << 16
_NARROW = 1e30
"""A precision whose largest value is below this has not the exponents of FP32."""


def squares_summed(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> Mapping[str, str]:
    """Find squares that lead to a sum, the sum, and what computes with it down to its root.

    The root of a sum over thousands of values, a norm, may overflow itself: what reads it is FP32 too.

    A square overflows FP16 from 256 on and vanishes below 0.00024: a norm is then infinite or a
    fraction of what it is. Squares of what is known to lie between are not meant, nor those of a
    precision with the exponents of FP32.

    Parameters
    ----------
    view, ranges
        The graph, and what is known of its values.
    low
        The low precision.

    Returns
    -------
    mapping
        What is squared, or the tensor of squares that is read, by node name.
    """
    if low.largest > _NARROW:
        return {}
    search = _Squares(view, ranges, low)
    for node in view.nodes:
        search.add(node)
    return search.found


class _Squares:
    """One run of :func:`squares_summed`: tensors of squares, sums of many of them, and their roots."""

    def __init__(self, view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> None:
        self.found: dict[str, str] = {}
        self._view, self._ranges, self._low = view, ranges, low
        self._leads_on = leading_to_sums(view, ranges)
        self._squares: set[str] = set()
        self._long_sums: set[str] = set()
        self._norms: set[str] = set()

    def add(self, node: OpNode) -> None:
        view, outputs = self._view, [t for t in node.outputs if t]
        source = _squared(node, view)
        if source is not None and not _holds_squares(source, view, self._ranges, self._low):
            self._add_square(node, source)
        elif (norm := next((t for t in node.inputs if t in self._norms), None)) is not None:
            self.found[node.name] = norm
            if node.op in _KEEPING_NORMS:
                self._norms.update(outputs)
        elif outputs and view.is_float32(outputs[0]):
            read = next((t for t in node.inputs if t in self._squares), None)
            if read is not None:
                self._add_consumer(node, read)

    def _add_square(self, node: OpNode, source: str) -> None:
        outputs = [t for t in node.outputs if t]
        is_sum = node.op in _SUMS_OF_SQUARES or node.op in _CONTRACTIONS
        if is_sum or node.outputs[0] in self._leads_on:
            self.found[node.name] = source
            self._squares.update(outputs)
        if _is_long_sum(node, self._view):
            (self._norms if node.op.op_type == "ReduceL2" else self._long_sums).update(outputs)

    def _add_consumer(self, node: OpNode, read: str) -> None:
        view, outputs = self._view, [t for t in node.outputs if t]
        if node.op in (OpKey("", "Sqrt"), OpKey("", "Pow")):
            self.found[node.name] = read
            if read in self._long_sums:
                self._norms.update(outputs)
            return
        is_sum = node.op in _SUMS or _adds_up(node, self._ranges)
        if not is_sum and node.op not in _CARRIERS:
            return
        if is_sum or node.outputs[0] in self._leads_on or read not in self._leads_on:
            self.found[node.name] = read
            if not _meets_another(node, view, self._squares):
                self._squares.update(outputs)
        # Divided by their number they are a mean, whose root is no larger than what was squared.
        is_kept = read in self._long_sums and node.op.op_type not in ("Div", "Mul")
        if is_kept or _is_long_sum(node, view):
            self._long_sums.update(outputs)


def _is_long_sum(node: OpNode, view: GraphView) -> bool:
    """Whether so many values are summed that the root of their squares is large beside each of them."""
    is_sum = node.op in _SUMS_OF_SQUARES or node.op in _CONTRACTIONS or node.op in _SUMS
    return is_sum and not node.op.op_type.endswith(("Mean", "Pool")) and _terms(node, view) >= _LONG


def _meets_another(node: OpNode, view: GraphView, squares: set[str]) -> bool:
    """Whether a product or quotient takes the square to something that varies: no square any more."""
    if node.op not in (OpKey("", "Mul"), OpKey("", "Div")):
        return False
    others = [t for t in node.inputs if t not in squares]
    return any(view.tensors[t].kind is not TensorKind.CONSTANT for t in others)


def _holds_squares(tensor: str, view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> bool:
    bound, terms = ranges.get(tensor, UNKNOWN).bound, view.tensors[tensor].elements or 1
    return bound * bound * terms <= low.largest


def _squared(node: OpNode, view: GraphView) -> str | None:
    """The tensor whose square a node computes or sums."""
    if node.op in _SUMS_OF_SQUARES:
        return node.inputs[0]
    if node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        is_two = exponent is not None and exponent.size == 1 and np.ravel(exponent)[0] == 2
        return node.inputs[0] if is_two else None
    if node.op == OpKey("", "Mul") or (node.op in _CONTRACTIONS and _is_norm(node, view)):
        if len(node.inputs) < 2:
            return None
        a, b = (_origin(t, view, _VIEWS | _SIGNS) for t in node.inputs[:2])
        is_data = a in view.tensors and view.tensors[a].kind is not TensorKind.CONSTANT
        return node.inputs[0] if a == b and is_data else None
    return None


def _is_norm(node: OpNode, view: GraphView) -> bool:
    """Whether a product sums so much into so little that it is a norm, not attention."""
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return before is None or after is None or after == 1 or before >= _MANY_TERMS * after


def _origin(tensor: str, view: GraphView, through: frozenset[OpKey] = _VIEWS) -> str:
    producer = view.producer.get(tensor)
    while producer is not None and producer.op in through:
        tensor = producer.inputs[0]
        producer = view.producer.get(tensor)
    return tensor


def leading_to_sums(view: GraphView, ranges: Mapping[str, ValueRange]) -> frozenset[str]:
    """Tensors that a sum over many values takes in, directly or through views and sums of two."""
    found: set[str] = set()
    for node in reversed(view.nodes):
        if node.op in _SUMS and _is_sum(node, view):
            found.add(node.inputs[0])
        elif _adds_up(node, ranges):
            found.update(node.inputs[:2])
        elif node.op in _CARRIERS and any(t in found for t in node.outputs):
            found.update(_carried(node))
    return frozenset(found)


def _carried(node: OpNode) -> Iterator[str]:
    positions = {"Div": (0,), "Where": (1, 2)}.get(node.op.op_type, range(len(node.inputs)))
    for position in positions:
        if node.inputs[position]:
            yield node.inputs[position]


def _adds_up(node: OpNode, ranges: Mapping[str, ValueRange]) -> bool:
    """Whether a product with a constant of equal values, ones say, stands for a sum."""
    known = (ranges.get(t, UNKNOWN) for t in node.inputs[:2])
    return node.op in _CONTRACTIONS and any(not r.varies and 0.0 != r.lowest == r.highest for r in known)


def _is_sum(node: OpNode, view: GraphView) -> bool:
    if node.op == OpKey("", "AveragePool"):
        return True
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return before is None or after is None or after < before


def gradient_products_summed(
    view: GraphView, ranges: Mapping[str, ValueRange], forward: frozenset[str], low: Precision
) -> frozenset[str]:
    """Find products of a gradient and an activation that are summed, in a graph without a loss scale.

    Unscaled gradients lie close to the smallest value FP16 holds; times an activation well below 1 (a
    probability of attention) most of them become zero, where FP32 would have summed them. A product with
    a normalized activation, a deviation from the mean that is about to be, or a mask loses little that
    the gradient itself has not lost.

    Parameters
    ----------
    view, ranges
        The graph, and what is known of its values.
    forward
        Nodes that the loss is computed by.
    low
        The low precision.

    Returns
    -------
    frozenset
        Names of nodes.
    """
    if low.largest > _NARROW:
        return frozenset()
    leads_on = leading_to_sums(view, ranges)
    found = set()
    for node in view.nodes:
        if node.op != OpKey("", "Mul") or node.name in forward or node.outputs[0] not in leads_on:
            continue
        if not _only_summed(node.outputs[0], view, leads_on):
            continue
        if all(_may_be_small(t, view, ranges) for t in node.inputs) and node.inputs[0] != node.inputs[1]:
            found.add(node.name)
    return frozenset(found)


def _only_summed(tensor: str, view: GraphView, leads_on: frozenset[str]) -> bool:
    """Whether nothing but sums reads a tensor: else it is a gradient itself, and low elsewhere anyway."""
    pending = [tensor]
    while pending:
        for use in view.consumers.get(pending.pop(), ()):
            node = view.node[use.node]
            if node.op in _VIEWS:
                pending.append(node.outputs[0])
            elif node.op not in _SUMS:
                return False
    return True


def _may_be_small(tensor: str, view: GraphView, ranges: Mapping[str, ValueRange]) -> bool:
    if view.tensors[tensor].kind is not TensorKind.ACTIVATION or not view.is_float32(tensor):
        return False
    known = ranges.get(tensor, UNKNOWN)
    if known.from_integers or known.is_guard or not known.varies:
        return False
    producer = view.producer.get(_origin(tensor, view))
    if producer is None:
        return False
    if producer.op in (OpKey("", "Mul"), OpKey("", "Div")):  # (x - mean) * (1 / deviation)
        return not any(ranges.get(t, UNKNOWN).is_guard for t in producer.inputs)
    if producer.op == OpKey("", "Sub"):  # x - mean
        return not _is_mean(producer.inputs[1], view)
    return producer.op not in _NORMALIZED


def _is_mean(tensor: str, view: GraphView) -> bool:
    producer = view.producer.get(_origin(tensor, view))
    if producer is None:
        return False
    if producer.op in (OpKey("", "Div"), OpKey("", "Mul")):  # a sum over many, divided by their number
        total = view.producer.get(_origin(producer.inputs[0], view))
        return total is not None and total.op in _SUMS
    return producer.op == OpKey("", "ReduceMean") or producer.op in _NORMALIZED


def scaled_gradients_summed(
    view: GraphView, forward: frozenset[str], unscaled: frozenset[str], low: Precision
) -> frozenset[str]:
    """Find sums over many values of gradients that carry a loss scale: the sum overflows before they do.

    The loss scaler would answer with a smaller scale, and small gradients would vanish elsewhere. A sum of
    sums counts what both take in: where each sample is summed first, only the sum over the batch is meant.

    Parameters
    ----------
    view
        The graph.
    forward
        Nodes that the loss is computed by.
    unscaled
        Nodes behind the division by the loss scale.
    low
        The low precision.
    """
    if low.largest > _NARROW:
        return frozenset()
    found: set[str] = set()
    summed: dict[str, int] = {}  # values that are summed in an element, by tensor
    for node in view.nodes:
        if node.name in forward or node.name in unscaled or not node.inputs:
            continue
        terms = summed.get(node.inputs[0], 1)
        if node.op in _SUMS and not node.op.op_type.endswith(("Mean", "Pool")):
            terms *= _terms(node, view)
            if terms >= _TERMS_OF_A_BATCH:
                found.add(node.name)
        elif node.op not in _VIEWS and node.op not in _SIGNS:
            continue
        if terms > 1:
            summed[node.outputs[0]] = terms
    return frozenset(found)


def _terms(node: OpNode, view: GraphView) -> int:
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return 0 if not before or not after else before // after
