"""Differences of squares that cancel: E[x^2] - E[x]^2, and |a|^2 - 2ab + |b|^2."""

from collections.abc import Iterator, Mapping, Sequence

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES,
    SUMS_OF_FEW,
    adds_up,
    squared,
    summed_input,
)
from campo_onnx.optimize.values.walk import Labels

_SCALES = MOVES | op_keys("Div Mul Neg")


def cancelling_squares(values: GraphValues) -> Mapping[str, str]:
    """Find differences of squares that are close to each other, with the squares, sums and products in them.

    A variance as E[x^2] - E[x]^2, a covariance as E[xy] - E[x]E[y], a squared distance as
    |a|^2 - 2ab + |b|^2: what is left is as small as the rounding of either term, and may become negative.
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
        self._products: set[str] = set()  # x * y, element by element
        self._means: set[str] = set()  # sums or means of anything
        self._squares: set[str] = set()  # x * x
        self._sums_of_squares: set[str] = set()  # |x|^2
        self._sums_of_products: set[str] = set()  # E[xy]
        self._products_of_means: set[str] = set()  # E[x] E[y]
        self._contractions: set[str] = set()  # products of matrices that vary
        self._kinds = (
            *(self._products, self._means, self._squares, self._sums_of_squares, self._sums_of_products),
            *(self._products_of_means, self._contractions),
        )

    def add(self, node: OpNode) -> None:
        outputs = [t for t in node.outputs if t]
        if not outputs or not self._view.is_float32(outputs[0]):
            return
        summed = self._summed(node)
        if node.op.label == "ReduceSumSquare":
            self._sums_of_products.update(outputs)
            self._sums_of_squares.update(outputs)
        elif summed is not None:
            self._means.update(outputs)
            self._sums_of_products.update(outputs if summed in self._products else ())
            self._sums_of_squares.update(outputs if summed in self._squares else ())
        elif node.op in CONTRACTIONS and not any(map(self._is_constant, node.inputs)):
            self._contractions.update(outputs)
        elif self._multiplies(node):
            self._add_product(node, outputs)
        elif node.op in _SCALES:
            for kind in self._kinds:
                if any(t in kind for t in node.inputs):
                    kind.update(outputs)
        elif node.op in SUMS_OF_FEW and all(t in self._sums_of_products for t in node.inputs):
            self._sums_of_products.update(outputs)
            if all(t in self._sums_of_squares for t in node.inputs):
                self._sums_of_squares.update(outputs)

    def _add_product(self, node: OpNode, outputs: Sequence[str]) -> None:
        self._products.update(outputs)
        if squared(node, self._view) is not None:
            self._squares.update(outputs)
        if all(t in self._means for t in node.inputs if not self._is_constant(t)):
            self._products_of_means.update(outputs)

    def _summed(self, node: OpNode) -> str | None:
        summed = summed_input(node, self._view)
        if summed is None and adds_up(node, self._values):
            return next((t for t in node.inputs if not self._is_constant(t)), None)
        return summed

    def cancels(self, node: OpNode) -> bool:
        def meet(one: set[str], other: set[str]) -> bool:
            return any(t in one for t in node.inputs) and any(t in other for t in node.inputs)

        is_covariance = meet(self._sums_of_products, self._products_of_means)
        return is_covariance or meet(self._sums_of_squares, self._contractions)

    def behind(self, node: OpNode) -> Iterator[str]:
        """Nodes that compute the terms of a difference, back to where their values come in."""
        pending, seen = list(node.inputs), set()
        while pending:
            tensor = pending.pop()
            producer = self._view.producer.get(tensor)
            if producer is None or producer.name in seen or not any(tensor in kind for kind in self._kinds):
                continue
            seen.add(producer.name)
            yield producer.name
            if producer.op not in CONTRACTIONS:
                pending.extend(t for t in producer.inputs if t)

    def _multiplies(self, node: OpNode) -> bool:
        if node.op.label == "Mul":
            return not any(map(self._is_constant, node.inputs))
        return node.op.label == "Pow" and squared(node, self._view) is not None

    def _is_constant(self, tensor: str) -> bool:
        return self._view.is_constant(tensor) or tensor not in self._view.tensors
