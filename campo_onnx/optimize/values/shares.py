"""Gradients of a softmax: a gradient less its mean, weighted by shares that add up to one."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from campo_onnx.ir.view import OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES_AND_SIGNS, SHARES, SUMS_OF_FEW, summed_input
from campo_onnx.optimize.values.walk import Labels, carried

_GATED = op_keys("com.microsoft:GatedAdd")  # x + y * gate


class _Product(NamedTuple):
    """Shares times other values, element by element: ``y * g``."""

    shares: str
    other: str


def weighted_means_removed(values: GraphValues) -> Mapping[str, str]:
    """Find the sums and differences of ``y * g - y * sum(y * g)`` or ``g - sum(y * g)`` of shares ``y``.

    Rows of keys and values that are much alike give a gradient ``g`` of which most is the same all along a
    row, and cancels. A rounded sum leaves the same part of it in the whole row, which adds up in the product
    that follows. Roundings of ``y``, ``g`` and ``y * g`` differ from element to element, and average out.
    """
    search, nodes = _Search(values), Labels()
    for node in values.view.nodes:
        search.add(node)
        for product in search.removed(node):
            nodes.mark((node.name, *search.behind(node, product)), node.outputs[0])
    return nodes


class _Search:
    """Tensors by what they are, up to views, signs, and rows that a mask replaces."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._products: dict[str, _Product] = {}
        self._sums: dict[str, str] = {}  # sum(y * g), and y times it: the tensor y * g

    def add(self, node: OpNode) -> None:
        """Take in a product of shares, a sum of one, or shares times that sum."""
        if node.op.label == "Mul":
            a, b = (self._origin(t) for t in node.inputs)
            for shares, other in ((a, b), (b, a)):
                if not self._are_shares(shares) or self._values.is_constant(other):
                    continue
                product = self._sums.get(other)
                if product is None:
                    self._products[node.outputs[0]] = _Product(shares, other)
                elif self._products[product].shares == shares:
                    self._sums[node.outputs[0]] = product
        elif (summed := summed_input(node, self._view)) is not None:
            product = self._origin(summed)
            if product in self._products:
                self._sums[node.outputs[0]] = product

    def removed(self, node: OpNode) -> Iterator[str]:
        """The product whose weighted mean a node takes off it, or off what is weighted."""
        if node.op in _GATED:
            base, *factors = (self._origin(t) for t in node.inputs)
            if base in self._products and {*factors} >= {self._products[base].shares}:
                yield from (base for t in factors if self._sums.get(t) == base)
        elif node.op in SUMS_OF_FEW and len(node.inputs) == 2:
            a, b = (self._origin(t) for t in node.inputs)
            for term, total in ((a, b), (b, a)):
                product = self._sums.get(total)
                if product is not None and term in (product, self._products[product].other):
                    yield product

    def behind(self, node: OpNode, product: str) -> Iterator[str]:
        """Nodes between a product of shares and a difference: the sum, and what multiplies it."""
        ends = {product, *self._products[product]}
        walk = Walk(node.inputs)
        for tensor in walk:
            producer = self._view.producer.get(tensor)
            if producer is not None and self._origin(tensor) not in ends:
                yield producer.name
                walk.add(carried(producer))

    def _are_shares(self, tensor: str) -> bool:
        producer = self._view.producer.get(tensor)
        return producer is not None and producer.op in SHARES

    def _origin(self, tensor: str) -> str:
        tensor = self._view.origin(tensor, MOVES_AND_SIGNS)
        producer = self._view.producer.get(tensor)
        if producer is not None and producer.op.label == "Where":
            varying = [t for t in producer.inputs[1:] if not self._values.is_constant(t)]
            return self._origin(varying[0]) if len(varying) == 1 else tensor
        return tensor
