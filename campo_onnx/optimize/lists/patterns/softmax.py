"""Softmax, fused or in pieces: its exponentials and its result are bounded by 1."""

from collections.abc import Iterator

from campo_onnx.ir.view import GraphView, OpNode, Use
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.registry import having, moving, spec
from campo_onnx.ops.spec import Movement
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_SOFTMAX = having(Trait.SHARES)
_VIEWS = moving(Movement.VIEW)
_KEEPS_ALL = moving(Movement.VIEW, Movement.REPEAT)


def softmax(view: GraphView, update: frozenset[str]) -> Findings:
    """Find Exp(x - max(x)), which lies in (0, 1], and what reads a softmax.

    1. Exp of a value minus its row's maximum, or minus something larger, becomes infer.
    2. What reads a Softmax reads values in [0, 1], however unsafe the softmax's own input is.

    3. Its gradient is y * (g - sum(g * y)). Where attention sums o * gradient of o instead, which is the
       same number of fewer terms, that sum is infer and spreads no unsafety onto the gradient either.

    The sum of a row and the division by it form a statistic that is broadcast back: the rule
    :func:`~campo_onnx.optimize.lists.patterns.normalization.normalization` finds those, and likewise
    the row sums in softmax's gradient.
    """
    classes: dict[str, tuple[OpClass, Finding]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if node.op in _SOFTMAX:
            contained.update(view.consumers.get(node.outputs[0], ()))
            for use, total in _row_sums(node.outputs[0], view):
                contained.add(use)
                classes[total.name] = (OpClass.INFER, Finding.SOFTMAX_SUM)
        elif node.op.label == "Exp":
            shift = view.producer.get(node.inputs[0])
            if shift is None or shift.op.label != "Sub":
                continue
            if shift.inputs[0] in _maxima_of(shift.inputs[1], view):
                classes[node.name] = (OpClass.INFER, Finding.SOFTMAX_EXP)
    return Findings(classes=classes, contained=frozenset(contained))


def _row_sums(weights: str, view: GraphView) -> Iterator[tuple[Use, OpNode]]:
    """Yield the sums that are taken from a gradient before it meets a softmax's result."""
    walk = Walk([weights])
    for tensor in walk:
        for use in view.consumers.get(tensor, ()):
            consumer = view.node[use.node]
            if consumer.op in _VIEWS or consumer.op.label == "Where":
                walk.add(consumer.outputs[:1])
            elif (place := _factor_of(consumer, use)) is not None:  # g * y + y * -sum
                total = _sum_behind(consumer.inputs[place], view)
                if total is not None:
                    yield Use(node=consumer.name, position=place), total
            elif consumer.op.label == "Mul":
                shift = view.producer.get(consumer.inputs[1 - use.position])
                total = _sum_behind(shift.inputs[1], view) if shift and shift.op.label == "Sub" else None
                if shift is not None and total is not None:
                    yield Use(node=shift.name, position=1), total


def _factor_of(consumer: OpNode, use: Use) -> int | None:
    """Return where a node that adds tensors reads the factor of each row of what it uses there, if it does.

    The factor may be left out.
    """
    scaled = spec(consumer.op).scaled_rows
    if scaled is None or use.position != scaled.rows or len(consumer.inputs) <= scaled.factor:
        return None
    return scaled.factor if consumer.attributes.get(scaled.streams, 1) == 1 else None


def _sum_behind(tensor: str, view: GraphView) -> OpNode | None:
    """Return the ReduceSum that `tensor` is, but for its shape and a constant factor."""
    while (node := view.producer.get(tensor)) is not None:
        if node.op.label == "ReduceSum":
            return node
        is_scale = node.op.label == "Neg" or (node.op.label == "Mul" and node.inputs[1] in view.values)
        if not is_scale and node.op not in _VIEWS:
            return None
        tensor = node.inputs[0]
    return None


def _maxima_of(tensor: str, view: GraphView) -> set[str]:
    """Return the tensors whose ReduceMax `tensor` is, or is no smaller than, looking through views.

    JAX takes the larger of the maximum and minus infinity, as if a row could be empty.
    """
    maxima, walk = set(), Walk([tensor])
    for larger in walk:
        producer = view.producer.get(larger)
        if producer is None:
            continue
        if producer.op.label == "ReduceMax":
            maxima.add(producer.inputs[0])
        elif producer.op in _KEEPS_ALL:
            walk.add(producer.inputs[:1])
        elif producer.op.label == "Max":
            walk.add(producer.inputs)
    return maxima
