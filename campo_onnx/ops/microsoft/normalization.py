"""Normalizations and softmax in one piece, fused forms and gradients."""

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.spec import LOW_KERNELS, SAME_AS_FIRST, Ask, Family, FixedPorts, Like, specs
from campo_onnx.ops.work import Stream

_NORM, _SOFTMAX = Family.NORMALIZATION, Family.SOFTMAX

SPECS = (
    *specs(
        MICROSOFT,
        "BatchNormInternal",
        _NORM,
        work=Stream(5, passes=2),
        ports=FixedPorts((0,)),
        training_kernels=LOW_KERNELS,
        shapes=Like((0, 3, 4, 3, 4)),
    ),
    *specs(
        MICROSOFT,
        "BatchNormalizationGrad",
        _NORM,
        work=Stream(10, passes=2),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=Like((1, 2, 2)),
    ),
    *specs(
        MICROSOFT,
        "LayerNormalizationGrad",
        _NORM,
        work=Stream(10, passes=2),
        ports=FixedPorts((0, 1, 2), (0, 1, 2)),
        training_kernels=LOW_KERNELS,
        shapes=Like((1, 2, 2)),
    ),
    *specs(
        MICROSOFT,
        "SimplifiedLayerNormalizationGrad",
        _NORM,
        work=Stream(10, passes=2),
        shapes=Like((1, 2)),
    ),
    *specs(
        MICROSOFT,
        "InvertibleLayerNormalizationGrad",
        _NORM,
        work=Stream(10, passes=2),
        shapes=Like((1, 2, 2)),
    ),
    *specs(MICROSOFT, "GroupNorm SkipGroupNorm", _NORM, work=Stream(5, passes=2)),
    *specs(
        MICROSOFT,
        "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization",
        _NORM,
        work=Stream(8),
    ),
    *specs(
        MICROSOFT,
        "BiasSoftmax",
        _SOFTMAX,
        asks=((1, Ask.MASK),),
        work=Stream(15),
        ports=FixedPorts((0, 1)),
        shapes=SAME_AS_FIRST,
    ),
    *specs(MICROSOFT, "BiasSoftmaxDropout", _SOFTMAX, draws=True),
    *specs(MICROSOFT, "SoftmaxDropoutGrad", _SOFTMAX),
    *specs(MICROSOFT, "SoftmaxGrad", _SOFTMAX, work=Stream(5), shapes=SAME_AS_FIRST),
    *specs(
        MICROSOFT,
        "SoftmaxGrad_13",
        _SOFTMAX,
        work=Stream(5),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *specs(MICROSOFT, "LogSoftmaxGrad", _SOFTMAX, work=Stream(12), shapes=SAME_AS_FIRST),
    *specs(
        MICROSOFT,
        "LogSoftmaxGrad_13",
        _SOFTMAX,
        work=Stream(12),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
)
