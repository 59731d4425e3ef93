"""Ranges of every operator's outputs: the table that fills ``OpSpec.values``."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.values import arithmetic, bounded, choices, pointwise, reductions
from campo_onnx.ops.values.range import UNKNOWN
from campo_onnx.ops.values.rule import Rule, of_ranges

_SHARE, _SIGNED = bounded.bounded_by(0.0, 1.0), bounded.bounded_by(-1.0, 1.0)
_QUARTER_TURNS = bounded.bounded_by(-math.pi / 2, math.pi / 2)

_BY_RULE: tuple[tuple[Rule, str], ...] = (
    (
        choices.first_input,
        """Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape
        ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze ReduceMax ReduceMin
        GlobalMaxPool com.microsoft:ExpandDims com.microsoft:View com.microsoft:GatherND""",
    ),
    (choices.hull_of_all, "Concat com.microsoft:ConcatTraining"),
    (of_ranges(choices.with_zero), "Trilu com.microsoft:Trilu MaxUnpool ThresholdedRelu"),
    (choices.pad, "Pad"),
    (choices.where, "Where"),
    (choices.scatter, "ScatterElements ScatterND Scatter TensorScatter"),
    (lambda _, inputs: (replace(inputs[2] or UNKNOWN, varies=True),), "OneHot"),  # for off and on
    (choices.constant_of_shape, "ConstantOfShape"),
    (choices.cast, "Cast CastLike"),
    (pointwise.pairwise(arithmetic.added), "Add Sum com.microsoft:BiasAdd"),
    (pointwise.sub, "Sub"),
    (pointwise.mul, "Mul"),
    (pointwise.gated_add, "com.microsoft:GatedAdd"),
    (pointwise.mixed, "com.microsoft:HyperConnectionPostMix"),
    (pointwise.div, "Div"),
    (pointwise.pairwise(arithmetic.larger), "Max"),
    (pointwise.pairwise(arithmetic.smaller), "Min"),
    (pointwise.mean, "Mean"),
    (of_ranges(arithmetic.negated), "Neg"),
    (pointwise.magnitude, "Abs"),
    (pointwise.clip, "Clip"),
    (pointwise.relu, "Relu"),
    (pointwise.saturated_below, "Celu Elu Selu Softplus"),
    (
        pointwise.no_larger,
        "Gelu Mish HardSwish com.microsoft:Gelu com.microsoft:FastGelu com.microsoft:QuickGelu",
    ),
    (pointwise.rounded, "Ceil Floor Round"),
    (pointwise.mod, "Mod"),
    (of_ranges(arithmetic.powered, 2), "Pow"),
    (of_ranges(arithmetic.root), "Sqrt"),
    (of_ranges(arithmetic.reciprocal), "Reciprocal"),
    (pointwise.monotone(math.exp), "Exp"),
    (pointwise.logarithm, "Log"),
    (_SHARE, "Softmax Sigmoid HardSigmoid Hardmax com.microsoft:BiasSoftmax"),
    (_SIGNED, "Tanh Erf Sin Cos Sign Softsign"),
    (_QUARTER_TURNS, "Atan Asin"),
    (
        bounded.comparison,
        """And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor EyeLike Bernoulli
        com.microsoft:IsFinite com.microsoft:IsAllFinite""",
    ),
    (
        bounded.moderate,
        """BatchNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization
        LpNormalization com.microsoft:BatchNormInternal com.microsoft:SkipLayerNormalization
        com.microsoft:EmbedLayerNormalization com.microsoft:LayerNormalizationGrad
        com.microsoft:SimplifiedLayerNormalizationGrad com.microsoft:BatchNormalizationGrad
        com.microsoft:SkipSimplifiedLayerNormalization
        com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13 com.microsoft:LogSoftmaxGrad
        com.microsoft:LogSoftmaxGrad_13 Attention com.microsoft:Attention com.microsoft:MultiHeadAttention""",
    ),
    (bounded.log_softmax, "LogSoftmax"),
    (bounded.layer_normalization, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    (choices.dropout, "Dropout"),
    (choices.bias_dropout, "com.microsoft:BiasDropout"),
    (choices.uniform, "RandomUniform RandomUniformLike"),
    (choices.normal, "RandomNormal RandomNormalLike"),
    (reductions.reduce_sum, "ReduceSum com.microsoft:ReduceSumTraining"),
    (of_ranges(lambda one: replace(one, is_integer=False)), "ReduceMean AveragePool GlobalAveragePool"),
    (reductions.cumulative, "CumSum"),
    (reductions.reduce_l1, "ReduceL1"),
    (reductions.reduce_squares, "ReduceSumSquare"),
    (reductions.reduce_l2, "ReduceL2"),
    (reductions.matmul, "MatMul com.microsoft:FusedMatMul com.microsoft:TransposeMatMul"),
    (reductions.gemm, "Gemm com.microsoft:FusedGemm"),
    (reductions.conv, "Conv ConvTranspose com.microsoft:FusedConv"),
    (of_ranges(lambda a, b: arithmetic.contracted(a, b, None), 2), "com.microsoft:ConvGrad"),
    (reductions.einsum, "Einsum"),
    (choices.positions, "Range"),
    (choices.index, "ArgMax ArgMin NonZero"),
    (choices.top_k, "TopK"),
    (of_ranges(lambda one: one), "MaxPool"),  # of positions nothing is said
    (choices.size, "Shape Size"),
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

BOUNDED = AT_MOST_ONE | {
    _QUARTER_TURNS,
    bounded.comparison,
    bounded.log_softmax,
    bounded.layer_normalization,
    choices.index,
    choices.size,
}
"""Rules of what gives values of moderate size, whatever it reads."""
