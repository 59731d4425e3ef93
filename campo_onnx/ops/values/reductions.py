"""Values of sums over many elements: reductions, products of matrices, convolutions."""

import math
from dataclasses import replace
from functools import partial, reduce

from campo_onnx.ops.gemms import factors
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.pointwise import magnitude
from campo_onnx.ops.values.range import INFINITY, UNKNOWN, ValueRange, exactly, hull, made
from campo_onnx.ops.values.rule import Ranges, at, present, shape_of


def _terms(signature: Signature) -> int | None:
    """Number of input values that meet in one of the output."""
    before = shape_of(signature, 0)
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


def reduce_sum(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of as many values as the shapes say."""
    return (_summed(inputs[0] or UNKNOWN, _terms(signature)),)


def cumulative(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of up to as many values as the longest axis has."""
    shape = shape_of(signature, 0)
    terms = None if shape is None else max(shape, default=1)
    one = inputs[0] or UNKNOWN
    return (hull((one, _summed(one, terms))),)


def reduce_l1(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of magnitudes."""
    return (_summed(magnitude(signature, inputs)[0], _terms(signature)),)


def reduce_squares(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of squares."""
    one = inputs[0] or UNKNOWN
    return (_summed(arithmetic.multiplied(one, one, is_square=True), _terms(signature)),)


def reduce_l2(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Roots of sums of squares."""
    return (arithmetic.root(reduce_squares(signature, inputs)[0]),)


def matmul(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of products along the inner axis, scaled by alpha."""
    shape = shape_of(signature, 0)
    terms = factors(signature, shape, ())[0][-1] if shape else None
    product = arithmetic.contracted(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN, terms)
    alpha = float(signature.attributes.get("alpha", 1.0))
    if alpha != 1.0:
        product = arithmetic.multiplied(product, exactly(alpha))
    return (product,)


def gemm(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """A product of matrices, and a bias."""
    product = matmul(signature, inputs)[0]
    third = at(inputs, 2)
    if third is None:
        return (product,)
    beta = exactly(float(signature.attributes.get("beta", 1.0)))
    return (arithmetic.added(product, arithmetic.multiplied(third, beta)),)


def conv(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of products over a window and its channels, and a bias."""
    weight = shape_of(signature, 1)
    terms = math.prod(weight[1:]) if weight is not None and signature.op.op_type == "Conv" else None
    product = arithmetic.contracted(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN, terms)
    bias = at(inputs, 2)
    return (product if bias is None else arithmetic.added(product, bias),)


def einsum(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sums of products of all inputs."""
    result = reduce(partial(arithmetic.contracted, terms=None), present(inputs))
    return (replace(result, lowest=-INFINITY, highest=INFINITY),)
