"""Operators that move and select elements, and what the training build asks of shapes."""

from functools import partial

from onnx import TensorProto

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import EVERY, LOW_KERNELS, Ask, Family, FixedPorts, Like, Movement, ShapedBy, specs
from campo_onnx.ops.work import Stream, WorkKind

_INT64 = int(TensorProto.INT64)
_moves = partial(specs, MICROSOFT, family=Family.MOVEMENT)


def _concat_types(signature: Signature) -> list[TensorType]:
    dtype, lengths = signature.input(0).dtype, TensorType(_INT64, (len(signature.inputs),))
    declared = [signature.input(i).shape for i in range(len(signature.inputs))]
    shapes = [shape for shape in declared if shape is not None]
    if len(shapes) < len(declared):
        return [TensorType(dtype), lengths]
    axis = signature.attribute("axis", 0) % len(shapes[0])
    if len({(*shape[:axis], 0, *shape[axis + 1 :]) for shape in shapes}) > 1:
        raise ValueError(f"sizes differ off axis {axis}")
    joined = (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
    return [TensorType(dtype, joined), lengths]


def _split_types(signature: Signature) -> list[TensorType]:
    data, sizes, parts = signature.input(0), signature.ints(1), len(signature.outputs)
    if data.shape is None or sizes is None:
        return [TensorType(data.dtype)] * parts
    axis = signature.attribute("axis", 0) % len(data.shape)
    if sum(sizes) != data.shape[axis] or len(sizes) != parts:
        raise ValueError(f"{sizes} does not split {data.shape[axis]} into {parts} outputs")
    return [TensorType(data.dtype, (*data.shape[:axis], size, *data.shape[axis + 1 :])) for size in sizes]


SPECS = (
    *_moves(
        "ConcatTraining",
        work=Stream(0),
        ports=FixedPorts(EVERY),
        training_kernels=LOW_KERNELS,
        shapes=_concat_types,
        movement=Movement.JOIN,
    ),
    *_moves(
        "SplitTraining",
        work=Stream(0),
        ports=FixedPorts((0,), EVERY),
        training_kernels=LOW_KERNELS,
        shapes=_split_types,
        movement=Movement.SELECT,
    ),
    *_moves(
        "SliceGrad",
        work=Stream(0),
        ports=FixedPorts((0,)),
        training_kernels=LOW_KERNELS,
        shapes=ShapedBy(1, 0),
    ),
    *_moves("PadAndUnflatten FlattenAndUnpad", work=Stream(0)),
    *_moves(
        "ShrunkenGather",
        work=Stream(0, gathers=True),
        movement=Movement.SELECT,
        asks=((1, Ask.INDEX_ALONG_AXIS),),
    ),
    *_moves("View PassThrough", work=WorkKind.VIEW),
    *_moves("ExpandDims GatherND GridSample Pad Trilu"),
    *_moves("RemovePadding RestorePadding"),
    *_moves("ResizeGrad", shapes=Like((1,))),
    *specs(MICROSOFT, "Range", Family.SOURCE),
    *specs(
        MICROSOFT,
        "BroadcastGradientArgs",
        Family.SHAPE,
        work=WorkKind.NONE,
        shapes=lambda _: [TensorType(_INT64)] * 2,
    ),
    *specs(MICROSOFT, "Unique", Family.SHAPE),
)
