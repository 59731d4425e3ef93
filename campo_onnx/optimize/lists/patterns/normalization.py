"""Pieces of decomposed normalizations (batch, layer, group, RMS) and of their gradients.

Their signature, whatever the framework: a reduction whose small result, after some arithmetic of
its own size, is broadcast back onto a tensor of the size that was reduced. Statistics of channels may be
made of those of rows that a LayerNormalization gives; they are broadcast onto what it normalizes.
"""

from collections.abc import Iterator

from campo_onnx.ir.view import GraphView, OpNode, Use
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having, moving
from campo_onnx.ops.spec import Movement
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_LINEAR = op_keys("GlobalAveragePool ReduceMean ReduceSum com.microsoft:ReduceSumTraining")
_SQUARING = having(Trait.SUM_OF_SQUARES)
_REDUCTIONS = _SQUARING | _LINEAR
_SCALES = having(Trait.SCALES)
_VECTOR_OPS = (
    _SQUARING
    | _SCALES
    | op_keys(
        """Add Sub Sqrt Reciprocal Pow Neg Max Clip Reshape Squeeze Unsqueeze Identity Expand Transpose Concat
    Split ReduceMean ReduceSum"""
    )
)
_BROADCASTS = _SCALES | op_keys("Add BatchNormalization Sub com.microsoft:GatedAdd")
_PRODUCTS = op_keys("MatMul com.microsoft:FusedMatMul")
_VIEWS = moving(Movement.VIEW)
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
        if not (sums_rows or node.op in _REDUCTIONS) or not view.is_float32(node.outputs[0]):
            continue
        reduced = _first_reduced(node, view)
        read = view.tensors[reduced].elements
        after = view.tensors[node.outputs[0]].elements
        if not read or not after or after >= read:
            continue
        before = normalized.get(node.inputs[0], read)
        most = max(_STACKED * after, read if before > read else 0)
        broadcasts = frozenset(_broadcasts_back(node, before, most, view))
        if not broadcasts:
            continue
        contained |= broadcasts
        square = view.producer.get(reduced)
        is_squared = square is not None and view.power(square) == 2
        if node.op in _SQUARING or is_squared:
            classes[node.name] = (OpClass.DENY, Finding.SUM_OF_SQUARES)
        else:
            classes[node.name] = (OpClass.INFER, Finding.STATISTIC)
        if square is not None and is_squared:
            classes[square.name] = (OpClass.DENY, Finding.SQUARES)
    return Findings(classes=classes, contained=frozenset(contained))


def _row_statistics(view: GraphView) -> dict[str, int]:
    """Find what is made of the statistics of rows that a LayerNormalization gives.

    Each tensor has the number of elements that were normalized.
    """
    rows_of: dict[str, int] = {}
    for node in view.nodes:
        if node.op.label != "LayerNormalization" or len(node.outputs) < 2:
            continue
        statistics = [tensor for tensor in node.outputs[1:] if tensor]
        normalized = view.tensors[node.outputs[0]].elements or 0
        rows = max((view.tensors[tensor].elements or 0 for tensor in statistics), default=0)
        if _STACKED * rows < normalized:
            rows_of |= dict.fromkeys(_vectors_of(statistics, _STACKED * rows, view), normalized)
    return rows_of


def _vectors_of(tensors: list[str], most: int, view: GraphView) -> set[str]:
    """Follow small tensors through arithmetic of at most `most` elements."""
    walk = Walk(tensors)
    for tensor in walk:
        for use in view.consumers.get(tensor, ()):
            consumer = view.node[use.node]
            elements = view.tensors[consumer.outputs[0]].elements if consumer.outputs[0] else None
            if elements is not None and elements <= most and consumer.op in _VECTOR_OPS:
                walk.add(consumer.outputs)
    return walk.seen


def _first_reduced(node: OpNode, view: GraphView) -> str:
    """The tensor that a reduction reduces; of one in stages, which reads rows of rows, that of the first."""
    tensor = view.origin(node.inputs[0], _VIEWS)
    while (producer := view.producer.get(tensor)) is not None and producer.op in _LINEAR:
        tensor = view.origin(producer.inputs[0], _VIEWS)
    return tensor


def _broadcasts_back(node: OpNode, before: int, most: int, view: GraphView) -> Iterator[Use]:
    """Yield the readings in which the statistic meets a tensor of the reduced one's size.

    On the way are vectors of at most `most` elements.
    """
    walk = Walk(node.outputs[:1])
    for tensor in walk:
        for use in view.consumers.get(tensor, ()):
            consumer = view.node[use.node]
            elements = view.tensors[consumer.outputs[0]].elements if consumer.outputs[0] else None
            if elements is None:
                continue
            if elements == before and consumer.op in _BROADCASTS:
                yield use
            elif elements <= most and consumer.op in _VECTOR_OPS:
                walk.add(consumer.outputs)
