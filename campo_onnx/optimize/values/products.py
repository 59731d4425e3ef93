"""Products of two values of unknown size that something is divided by: areas of boxes, products of norms."""

from collections.abc import Mapping

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.sum_ops import MOVES, NARROW, SIGNS, carried

_CARRIERS = (
    MOVES
    | SIGNS
    | {
        OpKey("", op)
        for op in (
            *("Add", "Clip", "Concat", "Gather", "Max", "Min", "ReduceMax", "ReduceMin", "ReduceSum", "Relu"),
            *("Slice", "Split", "Sub", "Sum", "Where"),
        )
    }
)
_ENDS = frozenset(OpKey("", op) for op in ("Div", "Log", "Reciprocal", "Sqrt"))


def unknown_products(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> Mapping[str, str]:
    """Find products of differences that lead to a divisor, a root or a logarithm, and what reads them.

    From 256 times 256 on a product overflows FP16: the area of a box in pixels, and its overlap with another
    is divided by that.

    Returns
    -------
    mapping
        The product, by node name.
    """
    if low.largest > NARROW:
        return {}
    leads_on: set[str] = set()
    for node in reversed(view.nodes):
        if node.op in _ENDS:
            leads_on.add(node.inputs[-1])
        elif node.op in _CARRIERS and any(t in leads_on for t in node.outputs):
            leads_on.update(carried(node))
    products: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in view.nodes if leads_on else ():
        output = node.outputs[0] if node.outputs else ""
        if node.op == OpKey("", "Mul") and output in leads_on and _is_unknown(node, view, ranges, low):
            found[node.name] = products[output] = output
            continue
        read = next((products[t] for t in node.inputs if t in products), "")
        if not read:
            continue
        found[node.name] = read
        if node.op in _CARRIERS:
            products.update((t, read) for t in node.outputs if t and view.is_float32(t))
    return found


def _is_unknown(node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> bool:
    """Whether a product is one of two extents, each a difference that nothing bounds."""
    a, b = node.inputs
    if a == b or not all(_is_extent(t, view) for t in (a, b)):
        return False
    return not ranges.get(a, UNKNOWN).bound * ranges.get(b, UNKNOWN).bound <= low.largest


def _is_extent(tensor: str, view: GraphView) -> bool:
    producer = view.producer.get(tensor)
    while producer is not None and (producer.op in _CARRIERS and producer.op != OpKey("", "Sub")):
        operands = [t for t in carried(producer) if view.producer.get(t) is not None]
        if not operands:
            return False
        producer = view.producer.get(operands[0])
    return producer is not None and producer.op == OpKey("", "Sub")
