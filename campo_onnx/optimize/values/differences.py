"""Squared distances by products of matrices, |a|^2 - 2ab + |b|^2, which cancel."""

from collections.abc import Iterator, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    SCALED,
    SUMS_OF_FEW,
    adds_up,
    squared,
    summed_input,
)
from campo_onnx.optimize.values.walk import Labels

_POWERS = op_keys("Mul Pow")


def cancelling_squares(values: GraphValues) -> Mapping[str, str]:
    """Find squared distances that are made of squares and products, by node name, with what leads to them.

    What is left is as small as the rounding of either term, and may become negative.
    """
    search, nodes = _Terms(values), Labels()
    for node in values.view.nodes:
        if node.op in SUMS_OF_FEW and search.cancels(node):
            nodes.mark((node.name, *search.behind(node)), node.outputs[0])
        else:
            search.add(node)
    return nodes


class _Terms:
    """Tensors by what they are, up to views and constant factors."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._squares: set[str] = set()  # x * x
        self._sums_of_squares: set[str] = set()  # |x|^2
        self._contractions: set[str] = set()  # products of matrices that vary
        self._kinds = (self._squares, self._sums_of_squares, self._contractions)

    def add(self, node: OpNode) -> None:
        outputs = [t for t in node.outputs if t]
        if not outputs or not self._view.is_float32(outputs[0]):
            return
        summed = self._summed(node)
        if node.op.label == "ReduceSumSquare" or summed in self._squares:
            self._sums_of_squares.update(outputs)
        elif node.op in CONTRACTIONS and not any(map(self._is_constant, node.inputs)):
            self._contractions.update(outputs)
        elif node.op in _POWERS and squared(node, self._view) is not None:
            self._squares.update(outputs)
        elif node.op in SCALED:
            for kind in self._kinds:
                if any(t in kind for t in node.inputs):
                    kind.update(outputs)
        elif node.op in SUMS_OF_FEW and all(t in self._sums_of_squares for t in node.inputs):
            self._sums_of_squares.update(outputs)

    def _summed(self, node: OpNode) -> str | None:
        summed = summed_input(node, self._view)
        if summed is None and adds_up(node, self._values):
            return next((t for t in node.inputs if not self._is_constant(t)), None)
        return summed

    def cancels(self, node: OpNode) -> bool:
        kinds = (self._sums_of_squares, self._contractions)
        return all(any(t in kind for t in node.inputs) for kind in kinds)

    def behind(self, node: OpNode) -> Iterator[str]:
        """Nodes that compute the terms of a difference, back to where their values come in."""
        walk, seen = Walk(node.inputs), set()
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is None or producer.name in seen or not any(tensor in kind for kind in self._kinds):
                continue
            seen.add(producer.name)
            yield producer.name
            if producer.op not in CONTRACTIONS:
                walk.add(filter(None, producer.inputs))

    def _is_constant(self, tensor: str) -> bool:
        return self._values.is_constant(tensor) or tensor not in self._view.tensors
