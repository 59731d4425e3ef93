"""Normalizations and softmax, in one piece."""

from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.schema import fp32_positions, one_type_ports
from campo_onnx.ops.signature import FLOAT, Signature, TensorType
from campo_onnx.ops.spec import Ask, BeforeSchema, Family, FixedPorts, specs
from campo_onnx.ops.work import Stream


def _trains(signature: Signature) -> bool:
    return bool(signature.attribute("training_mode", 0))


def _batch_normalization_ports(signature: Signature, _: Precision) -> Ports:
    if _trains(signature) or sum(output is not None for output in signature.outputs) > 1:
        return Ports(refusal=Refused.TRAINS_IN_FP32.of())
    # The schema lets scale and statistics keep FP32, but the CUDA provider registers kernels only
    # for one type throughout; it widens scale and statistics to FP32 inside.
    fp32_inputs, fp32_outputs = fp32_positions(signature)
    return Ports(low_inputs=fp32_inputs, low_outputs=fp32_outputs)


def layer_normalization_types(signature: Signature) -> list[TensorType]:
    """``LayerNormalization`` before opset 17, when it was ONNX Runtime's own."""
    x = signature.input(0).type
    statistics = None
    if x.shape is not None:
        axis = signature.attribute("axis", -1) % len(x.shape)
        statistics = x.shape[:axis] + (1,) * (len(x.shape) - axis)
    return [x, *[TensorType(signature.attribute("stash_type", FLOAT), statistics)] * 2]


def _channels(signature: Signature) -> tuple[int, ...] | None:
    """Channels of images."""
    shape = signature.input(0).shape
    return None if shape is None else shape[:2]


def _before_axis(signature: Signature) -> tuple[int, ...] | None:
    shape = signature.input(0).shape
    return None if shape is None else shape[: signature.attribute("axis", -1) % max(1, len(shape))]


def _but_for_axis(signature: Signature) -> tuple[int, ...] | None:
    """All axes but the one of a softmax; before opset 13 also those behind it are part of a row."""
    shape = signature.input(0).shape
    if not shape:
        return shape
    if signature.opset < _SOFTMAX_OF_ONE_AXIS:
        return shape[: signature.attribute("axis", 1) % len(shape)]
    axis = signature.attribute("axis", -1) % len(shape)
    return shape[:axis] + shape[axis + 1 :]


_SOFTMAX_OF_ONE_AXIS = 13
"""Opset from which Softmax goes along one axis."""

_NORM = Family.NORMALIZATION

SPECS = (
    *specs(
        "",
        "BatchNormalization",
        _NORM,
        # In training it reduces over the batch before it normalizes.
        work=Stream(5, passes=lambda signature: 2 if _trains(signature) else 1, rows=_channels),
        ports=_batch_normalization_ports,
        asks=((4, Ask.POSITIVE),),
    ),
    *specs("", "InstanceNormalization", _NORM, work=Stream(5, passes=2, rows=_channels)),
    *specs("", "GroupNormalization MeanVarianceNormalization", _NORM, work=Stream(5, passes=2)),
    # ONNX has it from opset 17 on; ONNX Runtime's training exports write it into older ones.
    *specs(
        "",
        "LayerNormalization",
        _NORM,
        work=Stream(8, rows=_before_axis),
        ports=BeforeSchema(FixedPorts((0, 1, 2))),
        shapes=layer_normalization_types,
        standard_in_runtime=True,
    ),
    # ONNX Runtime's RMS normalization.
    *specs(
        "",
        "SimplifiedLayerNormalization",
        _NORM,
        work=Stream(8, rows=_before_axis),
        ports=FixedPorts((0, 1)),
        shapes=lambda signature: layer_normalization_types(signature)[:2],
        standard_in_runtime=True,
    ),
    # The output has the type of the scale, which kernels take in the type of the data only.
    *specs("", "RMSNormalization", _NORM, work=Stream(8, rows=_before_axis), ports=one_type_ports),
    *specs("", "LpNormalization LRN", _NORM, work=Stream(8)),
    *specs("", "Softmax LogSoftmax", Family.SOFTMAX, work=Stream(15, rows=_but_for_axis)),
)
