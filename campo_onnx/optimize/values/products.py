"""Products of values of unknown size that a quotient or a root undoes, or whose logarithm is taken."""

from collections.abc import Iterable, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    MOVES,
    MOVES_AND_SIGNS,
    SCALES,
    gives_many_shares,
    is_root,
    squared,
    summed_input,
)
from campo_onnx.optimize.values.walk import Labels, carried, leading_to

_CARRIERS = (
    MOVES_AND_SIGNS
    | having(Trait.ADDS, Trait.EXTREME, Trait.PART)
    | op_keys("Clip Concat ReduceMean ReduceSum Relu Where")
)
_SCALING = _CARRIERS | SCALES
_DIVISIONS = op_keys("Div Reciprocal")
_TWO = 2.0
_LOGARITHM = op_keys("Log")


def unknown_products(values: GraphValues) -> Mapping[str, str]:
    """Find products that a quotient or a root undoes, or whose logarithm is taken, and what reads them.

    Where ``(a * d - b * c) / (e * f)`` fits into FP16, and so do its factors, its products need not: from 256
    times 256 on they overflow. The area of a box in pixels is one, and what makes the root of four sums of
    counts. Below 0.008 times 0.008 a product is no longer normal, which a logarithm shows: the power of a
    spectrum. Squares that are summed are :mod:`campo_onnx.optimize.values.sums`.
    """
    view, degrees = values.view, _Degrees(values)
    undone = leading_to(view, degrees.undone_at, _SCALING, counts=degrees.mixed.__contains__)
    to_logarithms = leading_to(view, lambda node: node.inputs[:1] if node.op in _LOGARITHM else (), _SCALING)
    products = Labels()
    nodes: dict[str, str] = {}
    for node in view.nodes if undone or to_logarithms else ():
        output = node.outputs[0] if node.outputs else ""
        is_power = output in to_logarithms and _is_product(node, values) and not _fits(node, values)
        if is_power or output in undone:
            nodes[node.name] = products[output] = output
        elif product := products.first(node.inputs):
            nodes[node.name] = product
            if node.op in _SCALING or degrees.is_still_product(node):
                products.mark(filter(view.is_float32, node.outputs), product)
    return nodes


class _Degrees:
    """Numbers of factors of unknown size in tensors of the forward pass: two in ``x * y``, one in its root.

    A square of anything counts two: a norm is as large as what is normalized.
    """

    def __init__(self, values: GraphValues) -> None:
        self.mixed: set[str] = set()  # products of different tensors, of two factors and more
        self._values, self._view = values, values.view
        self._degrees: dict[str, float] = {}
        self._sums: set[str] = set()
        self._of_sums: set[str] = set()  # products of two sums
        self._shares: set[str] = set()  # of many: bounded, and as small as their number is large
        for node in values.forward_nodes:
            output = next((t for t in node.outputs if t), "")
            if not self._view.is_float32(output):
                continue
            is_of_shares = node.op in MOVES and node.inputs[0] in self._shares
            if is_of_shares or gives_many_shares(node, self._view):
                self._shares.update(node.outputs)
            degree = self._degree(node)
            self._degrees.update((t, degree) for t in node.outputs if t)
            factors = [t for t in carried(node) if self._of(t)]
            if summed_input(node, self._view) is not None:
                self._sums.add(output)
            elif node.op.label == "Mul" and all(self._view.origin(t, MOVES) in self._sums for t in factors):
                self._of_sums.add(output)
            is_new = node.op.label == "Mul" and len(factors) > 1 and squared(node, self._view) is None
            if degree >= _TWO and (is_new or (node.op in _SCALING and not self.mixed.isdisjoint(factors))):
                self.mixed.update(node.outputs)

    def undone_at(self, node: OpNode) -> Iterable[str]:
        """The products that a node divides by and divides, or takes the root of.

        A product of two sums may be divided by a sum: what rows and columns say of an element.
        """
        if is_root(node, self._view):
            return node.inputs[:1]
        if node.op.label == "Mul":
            a, b = node.inputs[:2]
            return [t for t, other in ((a, b), (b, a)) if self._inverts_products(other)]
        divisor = self._divisor(node)
        if divisor is None:
            return ()
        dividend, origin = (self._view.origin(t, MOVES) for t in (node.inputs[0], divisor))
        is_of_sums = dividend in self._of_sums and origin in self._sums
        return node.inputs if is_of_sums or self._of_products(divisor) else ()

    def is_still_product(self, node: OpNode) -> bool:
        """Whether a node inverts a product, or takes a root of so many factors that two and more are left."""
        is_root_of_many = is_root(node, self._view) and self._of(node.outputs[0]) >= _TWO
        return is_root_of_many or (self._divisor(node) is not None and node.op.label != "Div")

    def _divisor(self, node: OpNode) -> str | None:
        if node.op in _DIVISIONS:
            return node.inputs[-1]
        return node.inputs[0] if (self._view.power(node) or 0.0) < 0.0 else None

    def _inverts_products(self, tensor: str) -> bool:
        producer = self._view.producer.get(self._view.origin(tensor, MOVES))
        divisor = None if producer is None or producer.op.label == "Div" else self._divisor(producer)
        return divisor is not None and self._of_products(divisor)

    def _of_products(self, tensor: str) -> bool:
        """Whether a divisor is a product of different tensors, or a root of one."""
        while (producer := self._view.producer.get(tensor)) is not None:
            if producer.op not in MOVES and not is_root(producer, self._view):
                break
            tensor = producer.inputs[0]
        return tensor in self.mixed

    def _of(self, tensor: str) -> float:
        r = self._values.range(tensor)
        is_open = not r.is_bounded or tensor in self._shares or tensor in self.mixed
        is_size = tensor and self._view.is_float32(tensor) and r.varies and is_open
        return self._degrees.get(tensor, 1.0) if is_size else 0.0

    def _degree(self, node: OpNode) -> float:
        degrees = [self._of(t) for t in node.inputs]
        exponent = self._view.power(node)
        if squared(node, self._view) is not None:
            return 2.0 * min(degrees[0], 1.0)
        if node.op.label == "Mul":
            return sum(degrees)
        if node.op.label == "Div":
            return max(degrees[0] - degrees[1], 0.0)
        if node.op.label == "Sqrt":
            return degrees[0] / 2.0
        if exponent is not None:
            return max(exponent, 0.0) * degrees[0]
        return max(degrees, default=0.0) if node.op in _CARRIERS else 1.0


def _fits(node: OpNode, values: GraphValues) -> bool:
    ranges = values.of(node.inputs[:2])
    smallest = min(abs(bound) for r in ranges for bound in (r.lowest, r.highest))
    is_positive = all(r.lowest > 0.0 or r.highest < 0.0 for r in ranges)
    is_small = ranges[0].bound * ranges[-1].bound <= values.low.largest
    return is_small and is_positive and smallest * smallest >= values.low.smallest_normal


def _is_product(node: OpNode, values: GraphValues) -> bool:
    """Whether a node multiplies two values that vary and that nothing bounds."""
    if squared(node, values.view) is not None and node.op.op_type in ("Mul", "Pow"):
        return True
    return node.op.label == "Mul" and all(r.varies and not r.is_bounded for r in values.of(node.inputs))
