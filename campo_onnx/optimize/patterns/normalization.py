"""Pieces of decomposed normalizations (batch, layer, group, RMS) and of their gradients.

Their signature, whatever the framework: a reduction whose small result, after some arithmetic of
its own size, is broadcast back onto a tensor of the size that was reduced.
"""

from collections.abc import Iterator

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, Use
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.op_class import OpClass
from campo_onnx.optimize.patterns.findings import Findings

STATISTIC = "a statistic of a normalization"
SUM_OF_SQUARES = "sums squares in a normalization"
SQUARES = "squares in a normalization"

_LINEAR = frozenset(
    {OpKey("", "ReduceMean"), OpKey("", "ReduceSum"), OpKey("com.microsoft", "ReduceSumTraining")}
)
_SQUARING = frozenset({OpKey("", "ReduceL2"), OpKey("", "ReduceSumSquare")})
_VECTOR_OPS = frozenset(
    OpKey("", op)
    for op in (
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Pow", "Neg", "Max", "Clip"),
        *("Reshape", "Squeeze", "Unsqueeze", "Identity", "Expand", "Transpose"),
    )
)
_STATISTIC = _VECTOR_OPS | _LINEAR
_BROADCASTS = frozenset(OpKey("", op) for op in ("Add", "BatchNormalization", "Div", "Mul", "Sub"))


def normalization(view: GraphView, update: frozenset[str]) -> Findings:
    """Find statistics, the squares they are made of, and where they are broadcast back.

    A reduction of the values themselves is infer, as it is inside the framework's own
    normalization. Squares and what sums them stay FP32, since x * x overflows FP16 from 256 on.
    Neither spreads unsafety onto the tensor the statistic is broadcast onto.
    """
    classes: dict[str, tuple[OpClass, str]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if node.op not in _LINEAR | _SQUARING or not view.is_float32(node.outputs[0]):
            continue
        reduced = _first_reduced(node, view)
        before = view.tensors[reduced].elements
        after = view.tensors[node.outputs[0]].elements
        if not before or not after or after >= before:
            continue
        broadcasts = frozenset(_broadcasts_back(node, before, after, view))
        if not broadcasts:
            continue
        contained |= broadcasts
        square = _square(reduced, view)
        if node.op in _SQUARING or square is not None:
            classes[node.name] = (OpClass.DENY, SUM_OF_SQUARES)
        else:
            classes[node.name] = (OpClass.INFER, STATISTIC)
        if square is not None:
            classes[square.name] = (OpClass.DENY, SQUARES)
    return Findings(classes=classes, contained=frozenset(contained))


def _first_reduced(node: OpNode, view: GraphView) -> str:
    """What a reduction reduces; of one in stages, what the first reduces."""
    tensor = node.inputs[0]
    while (producer := view.producer.get(tensor)) is not None and producer.op in _LINEAR:
        tensor = producer.inputs[0]
    return tensor


def _broadcasts_back(node: OpNode, before: int, after: int, view: GraphView) -> Iterator[Use]:
    """Yield the readings in which the statistic meets a tensor of the reduced one's size."""
    pending, seen = [node.outputs[0]], {node.outputs[0]}
    while pending:
        for use in view.consumers.get(pending.pop(), ()):
            consumer = view.node[use.node]
            elements = view.tensors[consumer.outputs[0]].elements if consumer.outputs[0] else None
            if elements is None:
                continue
            if elements == before and consumer.op in _BROADCASTS:
                yield use
            elif elements <= after and consumer.op in _STATISTIC and consumer.outputs[0] not in seen:
                seen.add(consumer.outputs[0])
                pending.append(consumer.outputs[0])


def _square(tensor: str, view: GraphView) -> OpNode | None:
    """What computes a tensor, if it squares."""
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
