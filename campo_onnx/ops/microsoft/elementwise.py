"""Activations, dropout and arithmetic, fused forms and gradients."""

from functools import partial
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

_each = partial(specs, MICROSOFT, family=Family.ELEMENTWISE)
_like_input = partial(_each, shapes=SAME_AS_FIRST)
_gradient = partial(_like_input, training_kernels=LOW_KERNELS)


def _dropout_types(signature: Signature) -> list[TensorType]:
    data = signature.input(0).type
    return [data, TensorType(int(TensorProto.BOOL), data.shape)]


def _bitmask_dropout_types(signature: Signature) -> list[TensorType]:
    # The mask packs 32 elements into one unsigned integer.
    data = signature.input(0).type
    mask = None if data.shape is None else (-(-prod(data.shape) // 32),)
    return [data, TensorType(int(TensorProto.UINT32), mask)]


SPECS = (
    *_gradient("ReluGrad", work=Stream(1), ports=FixedPorts((0, 1))),
    *_gradient("SigmoidGrad TanhGrad", work=Stream(4), ports=FixedPorts((0, 1))),
    *_gradient("GeluGrad FastGeluGrad QuickGeluGrad", work=Stream(25), ports=FixedPorts((0, 1))),
    *_gradient("BiasGeluGrad_dX", work=Stream(25), ports=FixedPorts((0, 1, 2))),
    *_like_input("BiasFastGeluGrad_dX", work=Stream(25)),
    *_like_input("Gelu QuickGelu", work=Stream(15), ports=FixedPorts((0,))),
    *_like_input("FastGelu BiasGelu", work=Stream(15), ports=FixedPorts((0, 1))),
    *_like_input("LeakyReluGrad", work=Stream(1)),
    *_like_input("GatedAdd", work=Stream(2), ports=FixedPorts((0, 1, 2)), scaled_rows=ScaledRows(1, 2)),
    *_like_input(
        "HyperConnectionPostMix",
        work=Stream(3),
        ports=FixedPorts((0, 1, 2, 3)),
        scaled_rows=ScaledRows(0, 3, streams="num_branches"),
    ),
    *_each("BiasAdd ScaledSum IsFinite IsAllFinite", work=Stream(1)),
    *_like_input("SinGrad", work=Stream(10)),
    *_like_input("Scale"),
    *_each("BiasSplitGelu ScaledSiLU BatchScale MixedPrecisionScale"),
    *_each("RotaryEmbedding", work=Stream(10)),
    *_each(
        "DivGrad",
        work=Stream(4),
        ports=FixedPorts((0, 1, 2), (0, 1)),
        training_kernels=FP16_KERNELS,
        shapes=Like((1, 2)),
    ),
    *_each(
        "BiasDropout",
        work=Stream(10),
        ports=FixedPorts((0, 1, 2)),
        training_kernels=LOW_KERNELS,
        shapes=_dropout_types,
        asks=((3, Ask.SHARE),),
        draws=True,
    ),
    *_gradient("DropoutGrad", work=Stream(2), ports=FixedPorts((0,))),
    *_each("BitmaskDropout BitmaskBiasDropout", work=Stream(10), shapes=_bitmask_dropout_types, draws=True),
    *_like_input("BitmaskDropoutGrad", work=Stream(2)),
)
