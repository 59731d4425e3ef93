"""Pieces of decomposed normalizations (batch, layer, group, RMS) and of their gradients.

Their signature, whatever the framework: a reduction whose small result, after some arithmetic of
its own size, is broadcast back onto a tensor of the size that was reduced. Statistics of channels may be
made of those of rows that a LayerNormalization gives; they are broadcast onto what it normalizes.
"""

from collections.abc import Iterator

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, Use
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Movement
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_LINEAR = frozenset(
    {OpKey("", "ReduceMean"), OpKey("", "ReduceSum"), OpKey("com.microsoft", "ReduceSumTraining")}
)
_SQUARING = frozenset({OpKey("", "ReduceL2"), OpKey("", "ReduceSumSquare")})
_VECTOR_OPS = frozenset(
    OpKey("", op)
    for op in (
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Pow", "Neg", "Max", "Clip"),
        *("Reshape", "Squeeze", "Unsqueeze", "Identity", "Expand", "Transpose"),
        *("Concat", "Split", "ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare"),
    )
)
_BROADCASTS = frozenset(OpKey("", op) for op in ("Add", "BatchNormalization", "Div", "Mul", "Sub")) | {
    OpKey("com.microsoft", "GatedAdd")
}
_PRODUCTS = frozenset({OpKey("", "MatMul"), OpKey("com.microsoft", "FusedMatMul")})
_LAYER_NORMALIZATION = OpKey("", "LayerNormalization")
_STACKED = 2
"""Statistics of two kinds may be joined to be reduced together."""


def normalization(view: GraphView, update: frozenset[str]) -> Findings:
    """Find statistics, the squares they are made of, and where they are broadcast back.

    A reduction of the values themselves is infer, as it is inside the framework's own
    normalization. Squares and what sums them stay FP32, since x * x overflows FP16 from 256 on.
    Neither spreads unsafety onto the tensor the statistic is broadcast onto.
    """
    classes: dict[str, tuple[OpClass, Finding]] = {}
    contained: set[Use] = set()
    normalized = _row_statistics(view)
    for node in view.nodes:
        sums_rows = node.op in _PRODUCTS and (view.shape(node.outputs[0]) or ())[-1:] == (1,)
        if not (sums_rows or node.op in _LINEAR | _SQUARING) or not view.is_float32(node.outputs[0]):
            continue
        reduced = _first_reduced(node, view)
        given = view.tensors[reduced].elements
        after = view.tensors[node.outputs[0]].elements
        if not given or not after or after >= given:
            continue
        before = normalized.get(node.inputs[0], given)
        most = max(_STACKED * after, given if before > given else 0)
        broadcasts = frozenset(_broadcasts_back(node, before, most, view))
        if not broadcasts:
            continue
        contained |= broadcasts
        square = _square(reduced, view)
        if node.op in _SQUARING or square is not None:
            classes[node.name] = (OpClass.DENY, Finding.SUM_OF_SQUARES)
        else:
            classes[node.name] = (OpClass.INFER, Finding.STATISTIC)
        if square is not None:
            classes[square.name] = (OpClass.DENY, Finding.SQUARES)
    return Findings(classes=classes, contained=frozenset(contained))


def _row_statistics(view: GraphView) -> dict[str, int]:
    """Find what is made of the statistics of rows that a LayerNormalization gives.

    Returns
    -------
    dict
        Elements that were normalized, by tensor.
    """
    found: dict[str, int] = {}
    for node in view.nodes:
        if node.op != _LAYER_NORMALIZATION or len(node.outputs) < 2:
            continue
        statistics = [tensor for tensor in node.outputs[1:] if tensor]
        normalized = view.tensors[node.outputs[0]].elements or 0
        rows = max((view.tensors[tensor].elements or 0 for tensor in statistics), default=0)
        if _STACKED * rows < normalized:
            found |= dict.fromkeys(_vectors_of(statistics, _STACKED * rows, view), normalized)
    return found


def _vectors_of(tensors: list[str], most: int, view: GraphView) -> set[str]:
    """Follow small tensors through arithmetic of at most `most` elements."""
    seen, pending = set(tensors), [*tensors]
    while pending:
        for use in view.consumers.get(pending.pop(), ()):
            consumer = view.node[use.node]
            elements = view.tensors[consumer.outputs[0]].elements if consumer.outputs[0] else None
            if elements is not None and elements <= most and consumer.op in _VECTOR_OPS:
                pending.extend(tensor for tensor in consumer.outputs if tensor not in seen)
                seen.update(consumer.outputs)
    return seen


def _first_reduced(node: OpNode, view: GraphView) -> str:
    """The tensor that a reduction reduces; of one in stages, the input of the first."""
    tensor = _behind_views(node.inputs[0], view)
    while (producer := view.producer.get(tensor)) is not None and producer.op in _LINEAR:
        tensor = _behind_views(producer.inputs[0], view)
    return tensor


def _behind_views(tensor: str, view: GraphView) -> str:
    """Return what `tensor` is in another shape: a long sum in stages reads its terms as rows of rows."""
    while (producer := view.producer.get(tensor)) and spec(producer.op).movement is Movement.VIEW:
        tensor = producer.inputs[0]
    return tensor


def _broadcasts_back(node: OpNode, before: int, most: int, view: GraphView) -> Iterator[Use]:
    """Yield the readings in which the statistic meets a tensor of the reduced one's size.

    On the way are vectors of at most `most` elements.
    """
    pending, seen = [node.outputs[0]], {node.outputs[0]}
    while pending:
        for use in view.consumers.get(pending.pop(), ()):
            consumer = view.node[use.node]
            elements = view.tensors[consumer.outputs[0]].elements if consumer.outputs[0] else None
            if elements is None:
                continue
            if elements == before and consumer.op in _BROADCASTS:
                yield use
            elif elements <= most and consumer.op in _VECTOR_OPS and consumer.outputs[0] not in seen:
                seen.update(consumer.outputs)
                pending.extend(consumer.outputs)


def _square(tensor: str, view: GraphView) -> OpNode | None:
    """The node that computes a tensor, if it squares."""
    producer = view.producer.get(tensor)
    if producer is None:
        return None
    if producer.op == OpKey("", "Mul") and producer.inputs[0] == producer.inputs[1]:
        return producer
    if producer.op == OpKey("", "Pow"):
        exponent = view.values.get(producer.inputs[1])
        if exponent is not None and exponent.size == 1 and np.ravel(exponent)[0] == 2:
            return producer
    return None
