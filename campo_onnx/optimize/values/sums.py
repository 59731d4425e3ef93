"""Squares and long sums: FP16 overflows on them, or makes the squares zero before they are summed."""

from collections.abc import Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CARRIERS_OF_SQUARES,
    CONTRACTIONS,
    MOVES,
    ROOTS,
    SCALES,
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

_KEEPING_NORMS = MOVES | op_keys("Add Clip Max Sum")


def squares_summed(values: GraphValues) -> Mapping[str, str]:
    """Find squares that lead to a sum, the sum, and what computes with it down to its root.

    A square overflows FP16 from 256 on and vanishes below 0.00024: a norm is then infinite or a fraction of
    what it is. Squares that the low precision is proved to hold do not count. The root of a sum over more
    than a few values may overflow itself: what reads it is FP32 too.
    """
    return _Squares(values).nodes


class _Squares:
    """One run of :func:`squares_summed`: tensors of squares, sums of many of them, and their roots."""

    def __init__(self, values: GraphValues) -> None:
        self.nodes: dict[str, str] = {}
        self._values, self._view = values, values.view
        self._to_sums = leading_to_sums(values)
        self._leads_on = leading_to_sums(values, to_roots=True)
        self._squares: set[str] = set()
        self._long_sums: set[str] = set()
        self._norms: set[str] = set()
        for node in self._view.nodes:
            self._add(node)

    def _add(self, node: OpNode) -> None:
        outputs = [t for t in node.outputs if t]
        source = squared(node, self._view)
        if source is not None and not self._holds_squares(source):
            self._add_square(node, source, outputs)
        elif (norm := next((t for t in node.inputs if t in self._norms), None)) is not None:
            self.nodes[node.name] = norm
            if node.op in _KEEPING_NORMS:
                self._norms.update(outputs)
        elif outputs and self._view.is_float32(outputs[0]):
            read = next((t for t in node.inputs if t in self._squares), None)
            if read is not None:
                self._add_consumer(node, read, outputs)

    def _holds_squares(self, tensor: str) -> bool:
        bound, terms = self._values.range(tensor).bound, self._view.tensors[tensor].elements or 1
        return bound * bound * terms <= self._values.low.largest

    def _add_square(self, node: OpNode, source: str, outputs: list[str]) -> None:
        is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS
        if is_sum or node.outputs[0] in self._leads_on or source in self._squares:
            self.nodes[node.name] = source
            self._squares.update(outputs)
        if self._is_long_sum(node):
            (self._norms if node.op.op_type == "ReduceL2" else self._long_sums).update(outputs)

    def _add_consumer(self, node: OpNode, read: str, outputs: list[str]) -> None:
        if node.op in ROOTS:
            self.nodes[node.name] = read
            if read in self._long_sums:
                self._norms.update(outputs)
            return
        is_sum = node.op in SUMS or summed_input(node, self._view) is not None or adds_up(node, self._values)
        if not is_sum and node.op not in CARRIERS_OF_SQUARES:
            return
        if is_sum or node.outputs[0] in self._leads_on or read not in self._to_sums:
            self.nodes[node.name] = read
            # A product or quotient with something that varies is no square any more.
            others = (t for t in node.inputs if t not in self._squares)
            if node.op not in SCALES or all(map(self._values.is_constant, others)):
                self._squares.update(outputs)
        # Divided by their number they are a mean, whose root is no larger than what was squared.
        is_sum_still = read in self._long_sums and node.op not in SCALES
        if is_sum_still or self._is_long_sum(node):
            self._long_sums.update(outputs)

    def _is_long_sum(self, node: OpNode) -> bool:
        """Whether so many values are summed that the root of their squares is large beside each of them."""
        is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS or node.op in SUMS
        return is_sum and not is_mean(node) and terms_of(node, self._view) >= _LONG
