"""Products of two values of unknown size that something is divided by, or whose logarithm is taken."""

from collections.abc import Mapping

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.sum_ops import MOVES, NARROW, SIGNS, carried, squared

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
_LOGARITHM = frozenset({OpKey("", "Log")})


def unknown_products(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> Mapping[str, str]:
    """Find products that lead to a divisor, a root or a logarithm, and what reads them up to there.

    From 256 times 256 on a product overflows FP16: the area of a box in pixels, which an overlap is divided
    by. Below 0.008 times 0.008 it is no longer normal, which a logarithm shows: the power of a spectrum.
    Products of differences are meant, and before a logarithm those of anything that is not bounded.

    Returns
    -------
    mapping
        The product, by node name.
    """
    if low.largest > NARROW:
        return {}
    to_ends, to_logarithms = (_leading_to(view, ends) for ends in (_ENDS, _LOGARITHM))
    products: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in view.nodes if to_ends else ():
        output = node.outputs[0] if node.outputs else ""
        is_extent = output in to_ends and _multiplies_extents(node, view)
        if (is_extent or (output in to_logarithms and _is_product(node, view, ranges))) and not _fits(
            node, ranges, low
        ):
            found[node.name] = products[output] = output
            continue
        read = next((products[t] for t in node.inputs if t in products), "")
        if not read:
            continue
        found[node.name] = read
        if node.op in _CARRIERS:
            products.update((t, read) for t in node.outputs if t and view.is_float32(t))
    return found


def _leading_to(view: GraphView, ends: frozenset[OpKey]) -> frozenset[str]:
    leads_on: set[str] = set()
    for node in reversed(view.nodes):
        if node.op in ends:
            leads_on.add(node.inputs[-1])
        elif node.op in _CARRIERS and any(t in leads_on for t in node.outputs):
            leads_on.update(carried(node))
    return frozenset(leads_on)


def _fits(node: OpNode, ranges: Mapping[str, ValueRange], low: Precision) -> bool:
    known = [ranges.get(t, UNKNOWN) for t in node.inputs[:2]]
    smallest = min(abs(bound) for r in known for bound in (r.lowest, r.highest))
    is_positive = all(r.lowest > 0.0 or r.highest < 0.0 for r in known)
    is_small = known[0].bound * known[-1].bound <= low.largest
    return is_small and is_positive and smallest * smallest >= low.smallest_normal


def _is_product(node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange]) -> bool:
    """Whether a node multiplies two values that vary and that nothing bounds."""
    if squared(node, view) is not None and node.op.op_type in ("Mul", "Pow"):
        return True
    known = [ranges.get(t, UNKNOWN) for t in node.inputs]
    return node.op == OpKey("", "Mul") and all(r.varies and not r.is_bounded for r in known)


def _multiplies_extents(node: OpNode, view: GraphView) -> bool:
    """Whether a node multiplies two extents, each a difference."""
    if node.op != OpKey("", "Mul") or node.inputs[0] == node.inputs[1]:
        return False
    return all(_is_extent(t, view) for t in node.inputs)


def _is_extent(tensor: str, view: GraphView) -> bool:
    producer = view.producer.get(tensor)
    while producer is not None and producer.op in _CARRIERS and producer.op != OpKey("", "Sub"):
        operands = [t for t in carried(producer) if view.producer.get(t) is not None]
        producer = view.producer.get(operands[0]) if operands else None
    return producer is not None and producer.op == OpKey("", "Sub")
