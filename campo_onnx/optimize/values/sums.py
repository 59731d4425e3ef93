"""Squares and long sums: FP16 overflows on them, or makes the squares zero before they are summed."""

from collections.abc import Mapping

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.sum_ops import (
    CARRIERS_OF_SQUARES,
    CONTRACTIONS,
    MOVES,
    NARROW,
    ROOTS,
    SUMS,
    SUMS_OF_SQUARES,
    adds_up,
    is_mean,
    leading_to_sums,
    squared,
    summed_input,
    terms_of,
)

_LONG = 16
"""The norm of so many values, each below 2**14, may overflow."""

_KEEPING_NORMS = MOVES | {OpKey("", op) for op in ("Add", "Clip", "Max", "Sum")}


def squares_summed(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> Mapping[str, str]:
    """Find squares that lead to a sum, the sum, and what computes with it down to its root.

    The root of a sum over more than a few values, a norm, may overflow itself: what reads it is FP32 too.

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
    if low.largest > NARROW:
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
        self._to_sums = leading_to_sums(view, ranges)
        self._leads_on = leading_to_sums(view, ranges, to_roots=True)
        self._squares: set[str] = set()
        self._long_sums: set[str] = set()
        self._norms: set[str] = set()

    def add(self, node: OpNode) -> None:
        view, outputs = self._view, [t for t in node.outputs if t]
        source = squared(node, view)
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
        is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS
        if is_sum or node.outputs[0] in self._leads_on:
            self.found[node.name] = source
            self._squares.update(outputs)
        if _is_long_sum(node, self._view):
            (self._norms if node.op.op_type == "ReduceL2" else self._long_sums).update(outputs)

    def _add_consumer(self, node: OpNode, read: str) -> None:
        view, outputs = self._view, [t for t in node.outputs if t]
        if node.op in ROOTS:
            self.found[node.name] = read
            if read in self._long_sums:
                self._norms.update(outputs)
            return
        is_sum = node.op in SUMS or summed_input(node, view) is not None or adds_up(node, self._ranges)
        if not is_sum and node.op not in CARRIERS_OF_SQUARES:
            return
        if is_sum or node.outputs[0] in self._leads_on or read not in self._to_sums:
            self.found[node.name] = read
            if not _meets_another(node, view, self._squares):
                self._squares.update(outputs)
        # Divided by their number they are a mean, whose root is no larger than what was squared.
        is_kept = read in self._long_sums and node.op.op_type not in ("Div", "Mul")
        if is_kept or _is_long_sum(node, view):
            self._long_sums.update(outputs)


def _is_long_sum(node: OpNode, view: GraphView) -> bool:
    """Whether so many values are summed that the root of their squares is large beside each of them."""
    is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS or node.op in SUMS
    return is_sum and not is_mean(node) and terms_of(node, view) >= _LONG


def _meets_another(node: OpNode, view: GraphView, squares: set[str]) -> bool:
    """Whether a product or quotient takes the square to something that varies: no square any more."""
    if node.op not in (OpKey("", "Mul"), OpKey("", "Div")):
        return False
    others = [t for t in node.inputs if t not in squares]
    return any(view.tensors[t].kind is not TensorKind.CONSTANT for t in others)


def _holds_squares(tensor: str, view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> bool:
    bound, terms = ranges.get(tensor, UNKNOWN).bound, view.tensors[tensor].elements or 1
    return bound * bound * terms <= low.largest
