"""Operators that move, select and convert elements."""

from onnx import TensorProto

from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.signature import FLOAT, Signature
from campo_onnx.ops.spec import Ask, Family, Movement, specs
from campo_onnx.ops.work import Stream, WorkKind


def _cast_ports(signature: Signature, _: Precision) -> Ports:
    source, target = signature.input(0).dtype, signature.output(0).dtype
    if source == TensorProto.BOOL and target == FLOAT:
        return Ports(low_outputs=frozenset({0}), attribute="to")
    if source == FLOAT and target == TensorProto.BOOL:
        return Ports(low_inputs=frozenset({0}))
    if {source, target} <= {FLOAT, *(low.onnx_dtype for low in low_precisions())}:
        return Ports(refusal=Refused.GIVEN_CAST.of())
    why = Refused.CONVERSION.of()
    if target == FLOAT:
        return Ports(low_outputs=frozenset({0}), attribute="to", refusal=why, follows_readers=True)
    return Ports(refusal=why)


_MOVE = Family.MOVEMENT

SPECS = (
    *specs(
        "", "Reshape Squeeze Unsqueeze Flatten Identity", _MOVE, work=WorkKind.VIEW, movement=Movement.VIEW
    ),
    *specs(
        "",
        "Transpose DepthToSpace SpaceToDepth ReverseSequence",
        _MOVE,
        work=Stream(0),
        movement=Movement.REORDER,
    ),
    *specs("", "Expand Tile", _MOVE, work=Stream(0), movement=Movement.REPEAT),
    *specs(
        "",
        "Gather GatherElements",
        _MOVE,
        work=Stream(0, gathers=True),
        movement=Movement.SELECT,
        asks=((1, Ask.INDEX_ALONG_AXIS),),
    ),
    *specs(
        "",
        "GatherND",
        _MOVE,
        work=Stream(0, gathers=True),
        movement=Movement.SELECT,
        asks=((1, Ask.INDEX_OF_ANY_AXIS),),
    ),
    *specs("", "Slice", _MOVE, work=Stream(0, gathers=True), movement=Movement.SELECT),
    *specs("", "Split Compress", _MOVE, work=Stream(0), movement=Movement.SELECT),
    *specs("", "Concat", _MOVE, work=Stream(0), movement=Movement.JOIN),
    *specs("", "Pad Where Trilu", _MOVE, work=Stream(0)),
    *specs("", "Cast", _MOVE, work=Stream(0), ports=_cast_ports),
    *specs("", "CastLike", _MOVE, work=Stream(0)),
    *specs("", "BitCast CenterCropPad", _MOVE),
    *specs("", "Resize Upsample GridSample", _MOVE, work=Stream(8)),
)
