"""Products of two values of unknown size that something is divided by, or whose logarithm is taken."""

from collections.abc import Callable, Iterable, Mapping

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import OpKey, op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES_AND_SIGNS, squared
from campo_onnx.optimize.values.walk import Labels, carried, leading_to

_CARRIERS = MOVES_AND_SIGNS | op_keys(
    "Add Clip Concat Gather Max Min ReduceMax ReduceMin ReduceSum Relu Slice Split Sub Sum Where"
)
_SCALING = _CARRIERS | op_keys("Div Mul")
_ENDS = op_keys("Div Log Reciprocal Sqrt")
_LOGARITHM = op_keys("Log")


def unknown_products(values: GraphValues) -> Mapping[str, str]:
    """Find products that lead to a divisor, a root or a logarithm, and what reads them up to there.

    From 256 times 256 on a product overflows FP16: the area of a box in pixels, which an overlap is divided
    by. Below 0.008 times 0.008 it is no longer normal, which a logarithm shows: the power of a spectrum.
    Products of differences are meant, and before a logarithm those of anything that is not bounded.
    """
    view = values.view
    to_ends = leading_to(view, _last_inputs(_ENDS), _CARRIERS)
    to_logarithms = leading_to(view, _last_inputs(_LOGARITHM), _SCALING)
    products = Labels()
    nodes: dict[str, str] = {}
    for node in view.nodes if to_ends else ():
        output = node.outputs[0] if node.outputs else ""
        is_extent = output in to_ends and _multiplies_extents(node, view)
        if (is_extent or (output in to_logarithms and _is_product(node, values))) and not _fits(node, values):
            nodes[node.name] = products[output] = output
        elif product := products.first(node.inputs):
            nodes[node.name] = product
            if node.op in _SCALING:
                products.mark(filter(view.is_float32, node.outputs), product)
    return nodes


def _last_inputs(ops: frozenset[OpKey]) -> Callable[[OpNode], Iterable[str]]:
    return lambda node: node.inputs[-1:] if node.op in ops else ()


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


def _multiplies_extents(node: OpNode, view: GraphView) -> bool:
    """Whether a node multiplies two extents, each a difference."""
    is_product = node.op.label == "Mul" and node.inputs[0] != node.inputs[1]
    return is_product and all(_is_extent(t, view) for t in node.inputs)


def _is_extent(tensor: str, view: GraphView) -> bool:
    producer = view.producer.get(tensor)
    while producer is not None and producer.op in _CARRIERS and producer.op.label != "Sub":
        operands = [t for t in carried(producer) if view.producer.get(t) is not None]
        producer = view.producer.get(operands[0]) if operands else None
    return producer is not None and producer.op.label == "Sub"
