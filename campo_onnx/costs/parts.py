"""Parts of a graph whose nodes take longer or shorter in a step than alone."""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.calibrate.in_step import Part
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.ops.spec import Family
from campo_onnx.ops.work import HOST_ONLY, WorkKind

_IMAGE_AXES = 4
_PART_OF = {
    Family.MATRIX_PRODUCT: Part.PRODUCTS,
    Family.RECURRENT: Part.PRODUCTS,
    Family.ATTENTION: Part.PRODUCTS,
    Family.CONVOLUTION: Part.CONVOLUTIONS,
    Family.NORMALIZATION: Part.REDUCTIONS,
    Family.SOFTMAX: Part.REDUCTIONS,
    Family.REDUCTION: Part.REDUCTIONS,
    Family.POOLING: Part.REDUCTIONS,
    Family.LOSS: Part.REDUCTIONS,
    Family.MOVEMENT: Part.MOVEMENT,
    Family.SCATTER: Part.MOVEMENT,
}


def parts_of(view: GraphView) -> Mapping[str, Part]:
    """Say for every node of a graph how it stands in it.

    A Relu behind a product is element-wise; an Add behind that Relu is computed in its kernel.
    """
    channels_last: set[str] = set()
    parts: dict[str, Part] = {}
    for node in view.nodes:
        part = _part(node, view, channels_last, parts)
        parts[node.name] = part
        passes_on = part not in (Part.REDUCTIONS, Part.PRODUCTS) and not channels_last.isdisjoint(node.inputs)
        if part is Part.CONVOLUTIONS or passes_on:
            channels_last.update(t for t in node.outputs if len(view.shape(t) or ()) == _IMAGE_AXES)
        if part is Part.LAYOUTS:
            channels_last.difference_update(node.outputs)
    return MappingProxyType(parts)


def _part(node: OpNode, view: GraphView, channels_last: set[str], part_of: Mapping[str, Part]) -> Part:
    if node.op == CAST:
        return Part.CASTS
    kind = work_of(view.signature(node.name)).kind
    if kind in HOST_ONLY:
        is_last = bool(node.inputs) and node.inputs[0] in channels_last
        return Part.LAYOUTS if kind is WorkKind.VIEW and is_last else Part.VIEWS
    part = _PART_OF.get(spec(node.op).family, Part.ELEMENTWISE)
    if node.op.label == "Where":  # it moves elements, each to its own place
        part = Part.ELEMENTWISE
    if part is Part.ELEMENTWISE:
        producers = (view.producer[tensor].name for tensor in node.inputs if tensor in view.producer)
        if any(part_of.get(name) in (Part.ELEMENTWISE, Part.FUSED) for name in producers):
            return Part.FUSED
    return part


def relaid(signature: Signature) -> Signature:
    """The Transpose that stands for a view in :attr:`Part.LAYOUTS`: of its input, to channels first."""
    operand = signature.input(0)
    batch, channels, *image = operand.shape or ()
    return make_signature(
        OpKey("", "Transpose"),
        inputs=[(operand.dtype, (batch, *image, channels))],
        outputs=[(operand.dtype, (batch, channels, *image))],
        attributes={"perm": [0, len(image) + 1, *range(1, len(image) + 1)]},
        opset=signature.opset,
    )
