"""Activations, dropout and arithmetic, fused forms and gradients."""

from math import prod

from onnx import TensorProto

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import (
    FP16_KERNELS,
    LOW_KERNELS,
    SAME_AS_FIRST,
    Ask,
    Family,
    FixedPorts,
    Like,
    ScaledRows,
    specs,
)
from campo_onnx.ops.work import Stream

_EACH = Family.ELEMENTWISE


def _dropout_types(signature: Signature) -> list[TensorType]:
    data = signature.input(0).type
    return [data, TensorType(int(TensorProto.BOOL), data.shape)]


def _bitmask_dropout_types(signature: Signature) -> list[TensorType]:
    # The mask packs 32 elements into one unsigned integer.
    data = signature.input(0).type
    mask = None if data.shape is None else (-(-prod(data.shape) // 32),)
    return [data, TensorType(int(TensorProto.UINT32), mask)]


SPECS = (
    *specs(
        MICROSOFT,
        "ReluGrad",
        _EACH,
        work=Stream(1),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(
        MICROSOFT,
        "SigmoidGrad TanhGrad",
        _EACH,
        work=Stream(4),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(
        MICROSOFT,
        "GeluGrad FastGeluGrad QuickGeluGrad",
        _EACH,
        work=Stream(25),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(
        MICROSOFT,
        "BiasGeluGrad_dX",
        _EACH,
        work=Stream(25),
        ports=FixedPorts((0, 1, 2)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(MICROSOFT, "BiasFastGeluGrad_dX", _EACH, work=Stream(25), shapes=SAME_AS_FIRST),
    *specs(MICROSOFT, "Gelu QuickGelu", _EACH, work=Stream(15), ports=FixedPorts((0,)), shapes=SAME_AS_FIRST),
    *specs(
        MICROSOFT, "FastGelu BiasGelu", _EACH, work=Stream(15), ports=FixedPorts((0, 1)), shapes=SAME_AS_FIRST
    ),
    *specs(MICROSOFT, "LeakyReluGrad", _EACH, work=Stream(1), shapes=SAME_AS_FIRST),
    *specs(
        MICROSOFT,
        "GatedAdd",
        _EACH,
        work=Stream(2),
        ports=FixedPorts((0, 1, 2)),
        shapes=SAME_AS_FIRST,
        scaled_rows=ScaledRows(1, 2),
    ),
    *specs(
        MICROSOFT,
        "HyperConnectionPostMix",
        _EACH,
        work=Stream(3),
        ports=FixedPorts((0, 1, 2, 3)),
        shapes=SAME_AS_FIRST,
        scaled_rows=ScaledRows(0, 3, streams="num_branches"),
    ),
    *specs(MICROSOFT, "BiasAdd ScaledSum IsFinite IsAllFinite", _EACH, work=Stream(1)),
    *specs(MICROSOFT, "SinGrad", _EACH, work=Stream(10), shapes=SAME_AS_FIRST),
    *specs(MICROSOFT, "Scale", _EACH, shapes=SAME_AS_FIRST),
    *specs(MICROSOFT, "BiasSplitGelu ScaledSiLU BatchScale MixedPrecisionScale", _EACH),
    *specs(MICROSOFT, "RotaryEmbedding", _EACH, work=Stream(10)),
    *specs(
        MICROSOFT,
        "DivGrad",
        _EACH,
        work=Stream(4),
        ports=FixedPorts((0, 1, 2), (0, 1)),
        training_kernels=FP16_KERNELS,
        shapes=Like((1, 2)),
    ),
    *specs(
        MICROSOFT,
        "BiasDropout",
        _EACH,
        work=Stream(10),
        ports=FixedPorts((0, 1, 2)),
        training_kernels=LOW_KERNELS,
        shapes=_dropout_types,
        asks=((3, Ask.SHARE),),
        draws=True,
    ),
    *specs(
        MICROSOFT,
        "DropoutGrad",
        _EACH,
        work=Stream(2),
        ports=FixedPorts((0,)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(
        MICROSOFT,
        "BitmaskDropout BitmaskBiasDropout",
        _EACH,
        work=Stream(10),
        shapes=_bitmask_dropout_types,
        draws=True,
    ),
    *specs(MICROSOFT, "BitmaskDropoutGrad", _EACH, work=Stream(2), shapes=SAME_AS_FIRST),
)
