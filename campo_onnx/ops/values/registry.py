"""Ranges of every operator's outputs: the table that fills ``OpSpec.values``."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.bounded import bounded_by, comparison, layer_normalization, log_softmax, moderate
from campo_onnx.ops.values.choices import (
    bias_dropout,
    cast,
    constant_of_shape,
    dropout,
    first_input,
    hull_of_all,
    index,
    max_pool,
    normal,
    one_hot,
    pad,
    positions,
    scatter,
    size,
    top_k,
    uniform,
    where,
    with_zero,
)
from campo_onnx.ops.values.pointwise import (
    clip,
    div,
    gated_add,
    logarithm,
    magnitude,
    mean,
    mixed,
    mod,
    monotone,
    mul,
    no_larger,
    pairwise,
    relu,
    rounded,
    saturated_below,
    sub,
)
from campo_onnx.ops.values.reductions import (
    conv,
    cumulative,
    einsum,
    gemm,
    matmul,
    reduce_l1,
    reduce_l2,
    reduce_mean,
    reduce_squares,
    reduce_sum,
    sum_of_products,
)
from campo_onnx.ops.values.rule import Rule, of_ranges

_SHARE, _SIGNED = bounded_by(0.0, 1.0), bounded_by(-1.0, 1.0)
_QUARTER_TURNS = bounded_by(-math.pi / 2, math.pi / 2)

_BY_RULE: tuple[tuple[Rule, str], ...] = (
    (
        first_input,
        """Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape
        ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze ReduceMax ReduceMin
        GlobalMaxPool com.microsoft:ExpandDims com.microsoft:View com.microsoft:GatherND""",
    ),
    (hull_of_all, "Concat com.microsoft:ConcatTraining"),
    (with_zero, "Trilu com.microsoft:Trilu MaxUnpool ThresholdedRelu"),
    (pad, "Pad"),
    (where, "Where"),
    (scatter, "ScatterElements ScatterND Scatter TensorScatter"),
    (one_hot, "OneHot"),
    (constant_of_shape, "ConstantOfShape"),
    (cast, "Cast CastLike"),
    (pairwise(arithmetic.added), "Add Sum com.microsoft:BiasAdd"),
    (sub, "Sub"),
    (mul, "Mul"),
    (gated_add, "com.microsoft:GatedAdd"),
    (mixed, "com.microsoft:HyperConnectionPostMix"),
    (div, "Div"),
    (pairwise(arithmetic.larger), "Max"),
    (pairwise(arithmetic.smaller), "Min"),
    (mean, "Mean"),
    (of_ranges(arithmetic.negated), "Neg"),
    (magnitude, "Abs"),
    (clip, "Clip"),
    (relu, "Relu"),
    (saturated_below, "Celu Elu Selu Softplus"),
    (
        no_larger,
        "Gelu Mish HardSwish com.microsoft:Gelu com.microsoft:FastGelu com.microsoft:QuickGelu",
    ),
    (rounded, "Ceil Floor Round"),
    (mod, "Mod"),
    (of_ranges(arithmetic.powered, 2), "Pow"),
    (of_ranges(arithmetic.root), "Sqrt"),
    (of_ranges(arithmetic.reciprocal), "Reciprocal"),
    (monotone(math.exp), "Exp"),
    (logarithm, "Log"),
    (_SHARE, "Softmax Sigmoid HardSigmoid Hardmax com.microsoft:BiasSoftmax"),
    (_SIGNED, "Tanh Erf Sin Cos Sign Softsign"),
    (_QUARTER_TURNS, "Atan Asin"),
    (
        comparison,
        """And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor EyeLike Bernoulli
        com.microsoft:IsFinite com.microsoft:IsAllFinite""",
    ),
    (
        moderate,
        """BatchNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization
        LpNormalization com.microsoft:BatchNormInternal com.microsoft:SkipLayerNormalization
        com.microsoft:EmbedLayerNormalization com.microsoft:LayerNormalizationGrad
        com.microsoft:SimplifiedLayerNormalizationGrad com.microsoft:BatchNormalizationGrad
        com.microsoft:SkipSimplifiedLayerNormalization
        com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13 com.microsoft:LogSoftmaxGrad
        com.microsoft:LogSoftmaxGrad_13 Attention com.microsoft:Attention com.microsoft:MultiHeadAttention""",
    ),
    (log_softmax, "LogSoftmax"),
    (layer_normalization, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    (dropout, "Dropout"),
    (bias_dropout, "com.microsoft:BiasDropout"),
    (uniform, "RandomUniform RandomUniformLike"),
    (normal, "RandomNormal RandomNormalLike"),
    (reduce_sum, "ReduceSum com.microsoft:ReduceSumTraining"),
    (reduce_mean, "ReduceMean AveragePool GlobalAveragePool"),
    (cumulative, "CumSum"),
    (reduce_l1, "ReduceL1"),
    (reduce_squares, "ReduceSumSquare"),
    (reduce_l2, "ReduceL2"),
    (matmul, "MatMul com.microsoft:FusedMatMul com.microsoft:TransposeMatMul"),
    (gemm, "Gemm com.microsoft:FusedGemm"),
    (conv, "Conv ConvTranspose com.microsoft:FusedConv"),
    (sum_of_products, "com.microsoft:ConvGrad"),
    (einsum, "Einsum"),
    (positions, "Range"),
    (index, "ArgMax ArgMin NonZero"),
    (top_k, "TopK"),
    (max_pool, "MaxPool"),
    (size, "Shape Size"),
)


_AnyRule = TypeVar("_AnyRule")


def registered(table: Iterable[tuple[_AnyRule, str]]) -> Mapping[OpKey, _AnyRule]:
    """Put a table of rules and operators together; ValueError where an operator has two."""
    rules: dict[OpKey, _AnyRule] = {}
    for rule, labels in table:
        for label in labels.split():
            if OpKey.parse(label) in rules:
                raise ValueError(f"{label} has two rules")
            rules[OpKey.parse(label)] = rule
    return MappingProxyType(rules)


RULES: Mapping[OpKey, Rule] = registered(_BY_RULE)
"""The rules by operator."""

AT_MOST_ONE = frozenset({_SHARE, _SIGNED})
"""Rules of what gives values between -1 and 1, whatever it reads."""

BOUNDED = AT_MOST_ONE | {_QUARTER_TURNS, comparison, log_softmax, layer_normalization, index, size}
"""Rules of what gives values of moderate size, whatever it reads."""
