"""Normalizations and softmax in one piece, fused forms and gradients."""

from functools import partial

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.spec import LOW_KERNELS, SAME_AS_FIRST, Ask, Family, FixedPorts, Like, specs
from campo_onnx.ops.work import Stream

_norm = partial(specs, MICROSOFT, family=Family.NORMALIZATION)
_softmax = partial(specs, MICROSOFT, family=Family.SOFTMAX)

SPECS = (
    *_norm(
        "BatchNormInternal",
        work=Stream(5, passes=2),
        ports=FixedPorts((0,)),
        training_kernels=LOW_KERNELS,
        shapes=Like((0, 3, 4, 3, 4)),
    ),
    *_norm(
        "BatchNormalizationGrad",
        work=Stream(10, passes=2),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=Like((1, 2, 2)),
    ),
    *_norm(
        "LayerNormalizationGrad",
        work=Stream(10, passes=2),
        ports=FixedPorts((0, 1, 2), (0, 1, 2)),
        training_kernels=LOW_KERNELS,
        shapes=Like((1, 2, 2)),
    ),
    *_norm("SimplifiedLayerNormalizationGrad", work=Stream(10, passes=2), shapes=Like((1, 2))),
    *_norm("InvertibleLayerNormalizationGrad", work=Stream(10, passes=2), shapes=Like((1, 2, 2))),
    *_norm("GroupNorm SkipGroupNorm", work=Stream(5, passes=2)),
    *_norm("SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization", work=Stream(8)),
    *_softmax(
        "BiasSoftmax", asks=((1, Ask.MASK),), work=Stream(15), ports=FixedPorts((0, 1)), shapes=SAME_AS_FIRST
    ),
    *_softmax("BiasSoftmaxDropout", draws=True),
    *_softmax("SoftmaxDropoutGrad"),
    *_softmax("SoftmaxGrad", work=Stream(5), shapes=SAME_AS_FIRST),
    *_softmax(
        "SoftmaxGrad_13",
        work=Stream(5),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
    *_softmax("LogSoftmaxGrad", work=Stream(12), shapes=SAME_AS_FIRST),
    *_softmax(
        "LogSoftmaxGrad_13",
        work=Stream(12),
        ports=FixedPorts((0, 1)),
        training_kernels=LOW_KERNELS,
        shapes=SAME_AS_FIRST,
    ),
)
