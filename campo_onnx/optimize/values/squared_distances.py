"""Squared distances by products of matrices, |a|^2 - 2ab + |b|^2, whose terms cancel."""

from collections.abc import Iterator, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES_AND_SIGNS,
    SCALED,
    SCALES,
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
        search.add(node)
        if search.cancels(node):
            nodes.mark((node.name, *search.behind(node)), node.outputs[0])
    return nodes


class _Terms:
    """Tensors by what they are, up to views and constant factors."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._squares: set[str] = set()  # x * x
        self._sums_of_squares: set[str] = set()  # |x|^2
        self._contractions: set[str] = set()  # products of matrices that vary
        self._kinds = (self._squares, self._sums_of_squares, self._contractions)
        self._walks = Walk[str](()), Walk[str](())  # behind differences, each node once: terms, and operands

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
        elif self.cancels(node):
            self._contractions.update(outputs)  # |a|^2 - 2ab, to which |b|^2 is added later

    def _summed(self, node: OpNode) -> str | None:
        summed = summed_input(node, self._view)
        if summed is None and adds_up(node, self._values):
            return next((t for t in node.inputs if not self._is_constant(t)), None)
        return summed

    def cancels(self, node: OpNode) -> bool:
        terms = _terms(node)
        is_product = node.op in CONTRACTIONS or not self._contractions.isdisjoint(terms)
        return is_product and not self._sums_of_squares.isdisjoint(terms)

    def behind(self, node: OpNode) -> Iterator[str]:
        """Nodes that compute the terms of a difference, back to where values come in, but for earlier ones.

        A product and a square read the same values: what moves or scales them for one of both would round
        them for that one alone.
        """
        (terms, operands), producer = self._walks, self._view.producer
        terms.add(_terms(node))
        operands.add(node.inputs)
        for tensor in terms:
            if tensor not in producer or not any(tensor in kind for kind in self._kinds):
                continue
            behind = producer[tensor]
            yield behind.name
            terms.add(_terms(behind) if behind.op in CONTRACTIONS else behind.inputs)
            operands.add(behind.inputs)
        for tensor in operands:
            if tensor in producer and self._is_moved(producer[tensor]):
                yield producer[tensor].name
                operands.add(producer[tensor].inputs)

    def _is_moved(self, node: OpNode) -> bool:
        return node.op in MOVES_AND_SIGNS or (node.op in SCALES and any(map(self._is_constant, node.inputs)))

    def _is_constant(self, tensor: str) -> bool:
        return self._values.is_constant(tensor) or tensor not in self._view.tensors


def _terms(node: OpNode) -> tuple[str, ...]:
    """The terms that a node adds up; of a product of matrices, those added to its result."""
    return node.inputs[2:] if node.op in CONTRACTIONS else node.inputs if node.op in SUMS_OF_FEW else ()
