"""What every operator makes of the ranges of its inputs: one rule an operator, by family."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import Shape, Signature
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.range import (
    BOOLEAN,
    INFINITY,
    UNKNOWN,
    UNKNOWN_INTEGER,
    ValueRange,
    between,
    exactly,
    from_integers,
    hull,
    made,
)

Ranges: TypeAlias = tuple[ValueRange | None, ...]
Rule: TypeAlias = Callable[[Signature, Ranges], tuple[ValueRange, ...]]

_INTEGER_BOUNDS = {
    int(TensorProto.BOOL): (0.0, 1.0),
    int(TensorProto.UINT8): (0.0, 255.0),
    int(TensorProto.INT8): (-128.0, 127.0),
    int(TensorProto.UINT16): (0.0, 65535.0),
    int(TensorProto.INT16): (-32768.0, 32767.0),
}
_WIDE_INTEGERS = frozenset(
    int(dtype) for dtype in (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
)


def of_type(dtype: int) -> ValueRange:
    """What the type of a tensor alone says of its values."""
    if dtype in _INTEGER_BOUNDS:
        lowest, highest = _INTEGER_BOUNDS[dtype]
        return made(lowest, highest, -1.0, 1.0, like=UNKNOWN_INTEGER)
    return UNKNOWN_INTEGER if dtype in _WIDE_INTEGERS else UNKNOWN


def propagated(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Find the ranges of a node's outputs from those of its inputs.

    Parameters
    ----------
    signature
        The node.
    inputs
        Ranges by position; None is an input that is left out.

    Returns
    -------
    tuple
        One range per output. Outputs of an operator without a rule carry on large values of its
        inputs, since nothing says that it bounds them.
    """
    rule = RULES.get(signature.op, _carried)
    found = rule(signature, inputs)
    types = [0 if operand is None else operand.dtype for operand in signature.outputs]
    rest = tuple(of_type(dtype) for dtype in types[len(found) :])
    return (*(_typed(r, dtype) for r, dtype in zip(found, types, strict=False)), *rest)


def _typed(found: ValueRange, dtype: int) -> ValueRange:
    """An integer or boolean output is at most what its type holds."""
    known = of_type(dtype)
    if not known.is_integer:
        return found
    lowest, highest = max(found.lowest, known.lowest), min(found.highest, known.highest)
    if lowest > highest:
        return known
    like = replace(found, is_integer=True, from_integers=True)
    return made(
        lowest,
        highest,
        found.expected_lowest,
        found.expected_highest,
        smallest=max(found.smallest, 1.0),
        like=like,
    )


def _present(inputs: Ranges) -> tuple[ValueRange, ...]:
    return tuple(r for r in inputs if r is not None)


def _at(inputs: Ranges, position: int) -> ValueRange | None:
    return inputs[position] if position < len(inputs) else None


def _carried(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    large = [r for r in _present(inputs) if not r.is_integer and r.magnitude > arithmetic.LARGE]
    if not large:
        return ()
    extreme = max(large, key=lambda r: r.magnitude)
    one = made(-INFINITY, INFINITY, -extreme.magnitude, extreme.magnitude, like=UNKNOWN.named(extreme.source))
    floats = [operand is not None and not of_type(operand.dtype).is_integer for operand in signature.outputs]
    return tuple(one if is_float else UNKNOWN_INTEGER for is_float in floats)


# Moves and choices.


def _first(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    return (one,) * len(signature.outputs)


def _hull_of_all(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (hull(_present(inputs)),)


def _with_zero(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (_and_zero(inputs[0] or UNKNOWN),)


def _and_zero(one: ValueRange) -> ValueRange:
    return replace(
        one,
        lowest=min(one.lowest, 0.0),
        highest=max(one.highest, 0.0),
        expected_lowest=min(one.expected_lowest, 0.0),
        expected_highest=max(one.expected_highest, 0.0),
    )


def _pad(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    fill = _at(inputs, 2)
    one = inputs[0] or UNKNOWN
    if signature.attributes.get("mode", "constant") not in ("constant", b"constant"):
        return (one,)
    return (_and_zero(one) if fill is None else hull((one, fill)),)


def _where(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = hull(r for r in inputs[1:3] if r is not None)
    return (replace(found, varies=True),)


def _scatter(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = hull(r for r in (inputs[0], inputs[2]) if r is not None)
    if signature.attributes.get("reduction", "none") in ("none", b"none"):
        return (found,)
    return (replace(found, lowest=-INFINITY, highest=INFINITY),)


def _one_hot(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (replace(inputs[2] or UNKNOWN, varies=True),)


def _constant_of_shape(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    value = signature.attributes.get("value")
    return (exactly(0.0 if value is None else float(np.ravel(value)[0])),)


def _cast(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    target = signature.outputs[0]
    if target is not None and target.dtype == TensorProto.BOOL:
        return (replace(BOOLEAN, varies=one.varies),)
    return (one,)


# Arithmetic.


def _same_operand(signature: Signature) -> bool:
    a, b = signature.inputs[0], signature.inputs[1]
    return a is not None and b is not None and a.name == b.name


def _pairwise(combine: Callable[[ValueRange, ValueRange], ValueRange]) -> Rule:
    def rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        found = _present(inputs)
        if not found:
            return ()
        result = found[0]
        for other in found[1:]:
            result = combine(result, other)
        return (result,)

    return rule


def _mul(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    return (arithmetic.multiplied(a, b, is_square=_same_operand(signature)),)


def _sub(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    if _same_operand(signature):
        return (exactly(0.0),)
    return (arithmetic.added(a, arithmetic.negated(b)),)


def _mean(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = hull(_present(inputs))
    return (replace(found, is_integer=False),)


def _neg(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.negated(inputs[0] or UNKNOWN),)


def _abs(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    straddles = one.lowest <= 0.0 <= one.highest
    lowest = 0.0 if straddles else min(abs(one.lowest), abs(one.highest))
    first = (
        0.0
        if one.expected_lowest <= 0.0 <= one.expected_highest
        else min(abs(one.expected_lowest), abs(one.expected_highest))
    )
    return (made(lowest, one.bound, first, one.magnitude, smallest=one.smallest, like=one),)


def _clip(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = inputs[0] or UNKNOWN
    for position, name, combine in ((1, "min", arithmetic.larger), (2, "max", arithmetic.smaller)):
        limit = _at(inputs, position)
        if limit is None and name in signature.attributes:
            limit = exactly(float(signature.attributes[name]))
        if limit is not None:
            found = combine(found, limit)
    return (found,)


def _relu(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    return (made(max(one.lowest, 0.0), max(one.highest, 0.0), 0.0, one.expected_highest, like=one),)


def _no_larger(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """An activation that tends to zero on the left and to its argument on the right, and is at least -0.3."""
    one = inputs[0] or UNKNOWN
    like = replace(one, is_integer=False, from_integers=False, is_guard=False)
    found = made(-0.3, max(one.highest, 0.0), max(one.expected_lowest, -0.3), one.expected_highest, like=like)
    return (found, *(UNKNOWN for _ in signature.outputs[1:]))


def _rounded(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    found = made(
        one.lowest - 1.0,
        one.highest + 1.0,
        one.expected_lowest,
        one.expected_highest,
        like=replace(one, is_integer=True, is_guard=False),
    )
    return (found,)


def _mod(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    like = replace(UNKNOWN, is_integer=a.is_integer and b.is_integer, from_integers=from_integers((a, b)))
    return (between(-b.bound, b.bound, like=like),)


def _pow(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.powered(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN),)


def _monotone(function: Callable[[float], float]) -> Rule:
    """A rule for a function that only grows."""

    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INFINITY
        except ValueError:
            return -INFINITY

    def rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        one = inputs[0] or UNKNOWN
        like = replace(one, is_integer=False, from_integers=False, is_guard=False)
        ends = (value(one.lowest), value(one.highest))
        expected = (value(one.expected_lowest), value(one.expected_highest))
        return (made(*ends, *expected, like=like),)

    return rule


def _log(x: float) -> float:
    return -INFINITY if x <= 0.0 else math.log(x)


def _log_rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    least = math.log(one.smallest)
    like = replace(one, is_integer=False, from_integers=False, is_guard=False)
    highest = _log(one.highest)
    return (
        made(_log(one.lowest), highest, min(least, -1.0), max(_log(one.expected_highest), 0.0), like=like),
    )


def _reciprocal(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.reciprocal(inputs[0] or UNKNOWN),)


def _root(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.root(inputs[0] or UNKNOWN),)


# Bounded results.


def _bounded(lowest: float, highest: float) -> Rule:
    def rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        varies = any(r.varies for r in _present(inputs))
        return (replace(between(lowest, highest), varies=varies),)

    return rule


def _comparison(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (replace(BOOLEAN, varies=any(r.varies for r in _present(inputs))),)


def _unknown(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Results of moderate size whatever the inputs are: normalizations, gradients of bounded functions."""
    return ()


def _log_softmax(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    spread = one.expected_highest - one.expected_lowest
    return (made(-INFINITY, 0.0, -max(spread, 1.0), 0.0, like=replace(UNKNOWN, source=one.source)),)


def _layer_normalization(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """A value is at most sqrt(n) deviations from the mean; 1 / deviation is at most 1 / sqrt(epsilon)."""
    scale, bias = _at(inputs, 1), _at(inputs, 2)
    shape = _shape(signature, 0)
    bound = INFINITY
    if shape is not None and scale is not None and scale.is_bounded and (bias is None or bias.is_bounded):
        axis = int(signature.attributes.get("axis", -1))
        bound = math.sqrt(max(math.prod(shape[axis:]), 1)) * scale.bound + (bias.bound if bias else 0.0)
    epsilon = float(signature.attributes.get("epsilon", 1e-5))
    most = 1.0 / math.sqrt(epsilon) if epsilon > 0.0 else INFINITY
    inverse = made(
        0.0,
        most,
        min(1.0, most),
        most if epsilon > 0.0 else 1.0,
        is_guard=True,
    )
    statistics = (UNKNOWN, inverse) if signature.op.op_type == "LayerNormalization" else (inverse,)
    return (between(-bound, bound), *statistics)[: len(signature.outputs)]


def _dropout(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    ratio = _at(inputs, 1)
    share = 0.5 if ratio is None else (ratio.highest if not ratio.varies else 1.0)
    scale = 1.0 / (1.0 - share) if 0.0 <= share < 1.0 else INFINITY
    one = _and_zero(inputs[0] or UNKNOWN)
    lowest, highest = arithmetic.times(one.lowest, scale), arithmetic.times(one.highest, scale)
    like = replace(one, is_integer=False, from_integers=False)
    return (made(lowest, highest, one.expected_lowest, one.expected_highest, like=like), BOOLEAN)


# Random sources.


def _uniform(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    low, high = (float(signature.attributes.get(name, d)) for name, d in (("low", 0.0), ("high", 1.0)))
    return (made(low, high, low, high, like=UNKNOWN),)


def _normal(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    mean, scale = (float(signature.attributes.get(name, d)) for name, d in (("mean", 0.0), ("scale", 1.0)))
    return (made(-INFINITY, INFINITY, mean - 4 * scale, mean + 4 * scale, like=UNKNOWN),)


# Sums over many values.


def _shape(signature: Signature, position: int) -> Shape | None:
    operand = signature.inputs[position] if position < len(signature.inputs) else None
    return None if operand is None else operand.shape


def _terms(signature: Signature) -> int | None:
    """How many values of the input meet in one of the output."""
    before = _shape(signature, 0)
    after = signature.outputs[0].shape if signature.outputs[0] is not None else None
    if before is None or after is None:
        return None
    return max(math.prod(before) // max(math.prod(after), 1), 1)


def _summed(one: ValueRange, terms: int | None) -> ValueRange:
    lowest = min(_many(one.lowest, terms), one.lowest) if one.lowest < 0.0 else one.lowest
    highest = max(_many(one.highest, terms), one.highest) if one.highest > 0.0 else one.highest
    is_count = one.from_integers or not one.varies
    first = lowest if is_count and math.isfinite(lowest) else one.expected_lowest
    last = highest if is_count and math.isfinite(highest) else one.expected_highest
    return made(lowest, highest, first, last, smallest=one.smallest, like=one)


def _many(value: float, terms: int | None) -> float:
    return math.copysign(INFINITY, value) if terms is None else value * terms


def _reduce_sum(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (_summed(inputs[0] or UNKNOWN, _terms(signature)),)


def _reduce_mean(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (replace(inputs[0] or UNKNOWN, is_integer=False),)


def _cumulative(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    shape = _shape(signature, 0)
    terms = None if shape is None else max(shape, default=1)
    one = inputs[0] or UNKNOWN
    return (hull((one, _summed(one, terms))),)


def _reduce_l1(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (_summed(_abs(signature, inputs)[0], _terms(signature)),)


def _reduce_squares(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    one = inputs[0] or UNKNOWN
    return (_summed(arithmetic.multiplied(one, one, is_square=True), _terms(signature)),)


def _reduce_l2(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.root(_reduce_squares(signature, inputs)[0]),)


def _matmul(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    shape = _shape(signature, 0)
    transposed = bool(signature.attributes.get("transA", 0))
    terms = None
    if shape:
        terms = shape[-2] if transposed and len(shape) > 1 else shape[-1]
    found = arithmetic.contracted(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN, terms)
    alpha = float(signature.attributes.get("alpha", 1.0))
    if alpha != 1.0:
        found = arithmetic.multiplied(found, exactly(alpha))
    return (found,)


def _gemm(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = _matmul(signature, inputs)[0]
    third = _at(inputs, 2)
    if third is None:
        return (found,)
    beta = exactly(float(signature.attributes.get("beta", 1.0)))
    return (arithmetic.added(found, arithmetic.multiplied(third, beta)),)


def _conv(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    weight = _shape(signature, 1)
    terms = math.prod(weight[1:]) if weight is not None and signature.op.op_type == "Conv" else None
    found = arithmetic.contracted(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN, terms)
    bias = _at(inputs, 2)
    return (found if bias is None else arithmetic.added(found, bias),)


def _einsum(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    found = _present(inputs)
    result = found[0]
    for other in found[1:]:
        result = arithmetic.contracted(result, other, None)
    return (replace(result, lowest=-INFINITY, highest=INFINITY),)


# Positions and sizes.


def _range(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    start, limit, _ = (r or UNKNOWN for r in inputs)
    return (hull((start, limit)),)


def _index(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    shape = _shape(signature, 0)
    highest = float(max(shape, default=1)) if shape is not None else INFINITY
    return (made(0.0, highest, 0.0, 1.0, like=UNKNOWN_INTEGER),)


def _top_k(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (inputs[0] or UNKNOWN, *_index(signature, inputs))


def _max_pool(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (inputs[0] or UNKNOWN,)


def _size(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    shape = _shape(signature, 0)
    if shape is None:
        return (made(0.0, INFINITY, 0.0, 1.0, like=UNKNOWN_INTEGER),)
    if signature.op.op_type == "Size":
        return (exactly(float(math.prod(shape))),)
    return (hull(exactly(float(size)) for size in shape) if shape else UNKNOWN_INTEGER,)


def _sum_of_products(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    return (arithmetic.contracted(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN, None),)


_BY_RULE: tuple[tuple[Rule, str], ...] = (
    (
        _first,
        """Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape
        ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze ReduceMax ReduceMin
        GlobalMaxPool com.microsoft:ExpandDims com.microsoft:View com.microsoft:GatherND""",
    ),
    (_hull_of_all, "Concat com.microsoft:ConcatTraining"),
    (_with_zero, "Trilu com.microsoft:Trilu MaxUnpool"),
    (_pad, "Pad"),
    (_where, "Where"),
    (_scatter, "ScatterElements ScatterND Scatter TensorScatter"),
    (_one_hot, "OneHot"),
    (_constant_of_shape, "ConstantOfShape"),
    (_cast, "Cast CastLike"),
    (_pairwise(arithmetic.added), "Add Sum com.microsoft:BiasAdd"),
    (_sub, "Sub"),
    (_mul, "Mul"),
    (_pairwise(arithmetic.divided), "Div"),
    (_pairwise(arithmetic.larger), "Max"),
    (_pairwise(arithmetic.smaller), "Min"),
    (_mean, "Mean"),
    (_neg, "Neg"),
    (_abs, "Abs"),
    (_clip, "Clip"),
    (_relu, "Relu ThresholdedRelu"),
    (
        _no_larger,
        "Gelu Mish Swish HardSwish com.microsoft:Gelu com.microsoft:FastGelu com.microsoft:QuickGelu",
    ),
    (_rounded, "Ceil Floor Round"),
    (_mod, "Mod"),
    (_pow, "Pow"),
    (_root, "Sqrt"),
    (_reciprocal, "Reciprocal"),
    (_monotone(math.exp), "Exp"),
    (_log_rule, "Log"),
    (_bounded(0.0, 1.0), "Softmax Sigmoid HardSigmoid Hardmax com.microsoft:BiasSoftmax"),
    (_bounded(-1.0, 1.0), "Tanh Erf Sin Cos Sign Softsign"),
    (_bounded(-math.pi / 2, math.pi / 2), "Atan Asin"),
    (
        _comparison,
        """And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor EyeLike Bernoulli
        com.microsoft:IsFinite com.microsoft:IsAllFinite""",
    ),
    (
        _unknown,
        """BatchNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization
        LpNormalization com.microsoft:BatchNormInternal com.microsoft:SkipLayerNormalization
        com.microsoft:EmbedLayerNormalization com.microsoft:LayerNormalizationGrad
        com.microsoft:SimplifiedLayerNormalizationGrad com.microsoft:BatchNormalizationGrad
        com.microsoft:SkipSimplifiedLayerNormalization
        com.microsoft:SoftmaxGrad com.microsoft:SoftmaxGrad_13 com.microsoft:LogSoftmaxGrad
        com.microsoft:LogSoftmaxGrad_13 Attention com.microsoft:Attention com.microsoft:MultiHeadAttention""",
    ),
    (_log_softmax, "LogSoftmax"),
    (_layer_normalization, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    (_dropout, "Dropout"),
    (_uniform, "RandomUniform RandomUniformLike"),
    (_normal, "RandomNormal RandomNormalLike"),
    (_reduce_sum, "ReduceSum com.microsoft:ReduceSumTraining"),
    (_reduce_mean, "ReduceMean AveragePool GlobalAveragePool"),
    (_cumulative, "CumSum"),
    (_reduce_l1, "ReduceL1"),
    (_reduce_squares, "ReduceSumSquare"),
    (_reduce_l2, "ReduceL2"),
    (_matmul, "MatMul com.microsoft:FusedMatMul com.microsoft:TransposeMatMul"),
    (_gemm, "Gemm com.microsoft:FusedGemm"),
    (_conv, "Conv ConvTranspose com.microsoft:FusedConv"),
    (_sum_of_products, "com.microsoft:ConvGrad"),
    (_einsum, "Einsum"),
    (_range, "Range"),
    (_index, "ArgMax ArgMin NonZero"),
    (_top_k, "TopK"),
    (_max_pool, "MaxPool"),
    (_size, "Shape Size"),
)

RULES: Mapping[OpKey, Rule] = MappingProxyType(
    {OpKey.parse(label): rule for rule, labels in _BY_RULE for label in labels.split()}
)
"""The rules by operator."""

assert len(RULES) == sum(len(labels.split()) for _, labels in _BY_RULE), "an operator has two rules"
