"""Accuracy that operators ask of their inputs because their results are needed to some accuracy."""

import math
from collections.abc import Mapping
from dataclasses import replace

from campo_onnx.ops.gemms import einsum, factors
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.arithmetic import GUARD
from campo_onnx.ops.values.need import (
    EXACT,
    FRACTIONS,
    NOTHING,
    Need,
    Needs,
    PassRule,
    after_cancelling,
    have_one_sign,
    known_at,
    magnitude_of,
)
from campo_onnx.ops.values.range import ValueRange
from campo_onnx.ops.values.registry import registered
from campo_onnx.ops.values.rule import Ranges, shape_of

_FEW_TERMS = 16
"""Products of matrices that sum so few terms transform coordinates."""


def first(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Elements of the first input, as they are or with another sign."""
    return {0: need}


def every(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Elements of any input."""
    return dict.fromkeys(range(len(inputs)), need)


def chosen(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Elements of the second or the third input; an index also depends on which of them it is."""
    return dict.fromkeys(range(0 if need.is_place else 1, len(inputs)), need)


def converted(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Elements of the first input where they were floats or truth values before."""
    before = signature.inputs[0]
    return {0: need} if before is not None and before.dtype in FRACTIONS else NOTHING


def summed(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Terms that are added, which may cancel.

    A positive constant that is added is taken to keep a sum from vanishing, as in 1 + x before a root; a tiny
    one is there for what has vanished.
    """
    if not have_one_sign(inputs) and not _is_guarded(inputs):
        need = after_cancelling(need, result)
    return dict.fromkeys(range(len(inputs)), need)


def _is_guarded(inputs: Ranges) -> bool:
    present = [r for r in inputs if r is not None]
    constants = [r for r in present if not r.varies]
    others = [r for r in present if r.varies]
    are_large = bool(constants) and all(r.lowest >= GUARD for r in constants)
    return are_large and len(others) == 1 and math.isinf(others[0].lowest)


def subtracted(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A difference, which cancels where both terms have the same sign."""
    a, b = known_at(inputs, 0), known_at(inputs, 1)
    is_sum = (a.lowest >= 0.0 and b.highest <= 0.0) or (a.highest <= 0.0 and b.lowest >= 0.0)
    need = need if is_sum else after_cancelling(need, result)
    return {0: need, 1: need}


def reduced(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Many terms of one input that are added, which cancel unless they have one sign.

    Of a sum without cancellation the large terms count: small ones need not be right to their last bit.
    """
    if not have_one_sign(inputs[:1]):
        return {0: after_cancelling(need, result)}
    size = known_at(inputs, 0).magnitude
    return {0: replace(need, absolute=max(need.absolute, need.relative * size))}


def multiplied(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Factors: a constant one makes the error of the other larger."""
    a, b = known_at(inputs, 0), known_at(inputs, 1)
    return {
        0: replace(need, absolute=need.absolute / magnitude_of(b)),
        1: replace(need, absolute=need.absolute / magnitude_of(a)),
    }


def divided(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A numerator and a divisor."""
    a, b = known_at(inputs, 0), known_at(inputs, 1)
    quotient = magnitude_of(a) / magnitude_of(b)
    return {
        0: replace(need, absolute=need.absolute * magnitude_of(b)),
        1: replace(need, relative=max(need.relative, need.absolute / quotient), absolute=0.0),
    }


def relative(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A relative error of the argument is one of its reciprocal, and an absolute one of its logarithm."""
    return {0: replace(need, relative=max(need.relative, need.absolute), absolute=0.0)}


def rooted(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """The square of a root."""
    return {0: replace(need, relative=2.0 * need.relative, absolute=need.absolute * need.absolute)}


def powered(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """The base of a power, or the exponent of a constant."""
    base, exponent = known_at(inputs, 0), known_at(inputs, 1)
    if not base.varies and base.lowest > 0.0:
        growth = max(abs(math.log(base.lowest)), abs(math.log(base.highest))) or 1.0
        return {1: replace(need, relative=0.0, absolute=max(need.relative, need.absolute) / growth)}
    if exponent.varies or not exponent.bound:
        return {0: need}
    if exponent.highest < 0.0:
        need = replace(need, relative=max(need.relative, need.absolute), absolute=0.0)
    elif exponent.bound < 1.0:
        need = replace(need, absolute=min(need.absolute, 1.0) ** (1.0 / exponent.bound))
    share = 1.0 / exponent.bound
    return {0: replace(need, relative=need.relative * share, absolute=need.absolute * min(share, 1.0))}


def whole_steps(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """An index or a count goes wrong wherever rounding takes an argument over a step."""
    exact = Need(is_place=need.is_place)
    return {0: exact} if need.is_place or need == exact else NOTHING


def decided(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A count or an index by comparisons changes with every one that rounding decides.

    What sets its own accuracy is rounded all the same, a score of a product of matrices.
    """
    return dict.fromkeys(range(len(inputs)), EXACT) if need.is_place else NOTHING


def weighted_sum(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A sum of one factor, where the other is weights of one sign: a window, which may be computed."""
    weights = [i for i, r in enumerate(inputs[:2]) if r is not None and r.weighs]
    if len(weights) != 1:
        return NOTHING
    summed = 1 - weights[0]
    share = max(need.relative, need.absolute / (result.magnitude or 1.0))
    return {
        summed: reduced(signature, inputs[summed : summed + 1], result, need)[0],
        weights[0]: replace(need, relative=share, absolute=0.0),
    }


def contracted(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A sum, a sum of products, an outer product, coordinates times a small matrix; others set their own."""
    if needs := weighted_sum(signature, inputs, result, need):
        return needs
    shape = shape_of(signature, 0)
    if not shape or len(signature.inputs) < 2:
        return NOTHING
    if signature.op.op_type == "Einsum":
        shapes = [sizes for i in range(len(inputs)) if (sizes := shape_of(signature, i)) is not None]
        terms = einsum(signature, *shapes)[0].k if len(shapes) == len(inputs) == 2 else math.inf
    else:
        terms = factors(signature, shape, ())[0][-1]
    output = signature.outputs[0]
    after = math.prod(output.shape) if output is not None and output.shape is not None else 0
    if all(math.prod(shape_of(signature, i) or ()) == terms * after for i in range(2)):  # row by row
        need = need if have_one_sign(inputs[:2]) else after_cancelling(need, result)
    elif terms > (_FEW_TERMS if need.is_place else 1):
        return NOTHING
    return dict.fromkeys(range(len(inputs)), need)


def absolute(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """An absolute error of the argument of an exponential is a relative error of the result.

    Where a function has a slope of at most about 1, the absolute error does not grow.
    """
    return {0: replace(need, relative=0.0, absolute=max(need.absolute, need.relative))}


def near_one(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """Functions with an infinite slope at 1."""
    away = max(1.0 - known_at(inputs, 0).bound, 0.0)
    return {0: replace(need, relative=0.0, absolute=max(need.absolute, need.relative) * away)}


def remainder(signature: Signature, inputs: Ranges, result: ValueRange, need: Need) -> Needs:
    """A value that steps are taken off, which cancels as a difference does."""
    return dict.fromkeys((0, 1), after_cancelling(need, result))


_BY_RULE: tuple[tuple[PassRule, str], ...] = (
    (
        first,
        """Abs CenterCropPad Clip Compress CumProd DepthToSpace Dropout Expand Flatten Gather GatherElements
        GatherND GlobalMaxPool Identity LeakyRelu MaxPool Neg Pad PRelu Relu Reshape Resize ReverseSequence
        RotaryEmbedding Shrink Slice SpaceToDepth Split Squeeze SwiGLU ThresholdedRelu Tile Transpose Trilu
        Unsqueeze Upsample ReduceL1 ReduceL2 ReduceMax ReduceMin ReduceProd ReduceSumSquare TopK AffineGrid
        com.microsoft:BatchScale com.microsoft:ExpandDims com.microsoft:GatherND com.microsoft:Pad
        com.microsoft:RotaryEmbedding com.microsoft:Trilu com.microsoft:View""",
    ),
    (every, "And Concat Max Mean Min Not Or Xor com.microsoft:ConcatTraining"),
    (chosen, "Where"),
    (lambda _, inputs, result, need: {0: need, 2: need}, "ScatterElements ScatterND Scatter"),
    (converted, "Cast CastLike"),
    (summed, "Add Sum com.microsoft:BiasAdd com.microsoft:GatedAdd com.microsoft:ScaledSum"),
    (subtracted, "Sub"),
    (reduced, "AveragePool CumSum GlobalAveragePool ReduceMean ReduceSum com.microsoft:ReduceSumTraining"),
    (remainder, "Mod"),
    (multiplied, "Mul"),
    (divided, "Div"),
    (relative, "Log Reciprocal ReduceLogSum"),
    (rooted, "Sqrt"),
    (powered, "Pow"),
    (
        absolute,
        """Asinh Atan Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish LogSoftmax Mish ReduceLogSumExp
        Selu Sigmoid Sin Sinh Softmax Softplus Softsign Swish Tan Tanh com.microsoft:FastGelu
        com.microsoft:Gelu com.microsoft:QuickGelu""",
    ),
    (near_one, "Acos Acosh Asin Atanh"),
    (whole_steps, "Ceil Floor Round"),
    (decided, "Equal Greater GreaterOrEqual Hardmax Less LessOrEqual Sign"),
    (weighted_sum, "Conv ConvTranspose"),
    (contracted, "Einsum Gemm MatMul com.microsoft:FusedMatMul"),
)

PASSES: Mapping[OpKey, PassRule] = registered(_BY_RULE)
"""The rules by operator."""
