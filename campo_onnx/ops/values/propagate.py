"""From the ranges of a node's inputs to those of its outputs."""

from dataclasses import replace
from itertools import zip_longest

from campo_onnx.ops.registry import current
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.range import INFINITY, UNKNOWN, UNKNOWN_INTEGER, ValueRange, hull, made
from campo_onnx.ops.values.rule import Ranges, of_type


def propagated(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Find the ranges of a node's outputs from those of its inputs.

    Outputs of an operator without a rule carry on large values of its inputs, since nothing says that it
    bounds them.

    `inputs`: ranges by position; None is an input that is left out.
    """
    rule = current().spec_of(signature).values or _carried
    results = rule(signature, inputs)
    types = [0 if operand is None else operand.dtype for operand in signature.outputs]
    rest = tuple(of_type(dtype) for dtype in types[len(results) :])
    return (*(_typed(r, dtype) for r, dtype in zip(results, types, strict=False)), *rest)


def _typed(values: ValueRange, dtype: int) -> ValueRange:
    """An integer or boolean output is at most what its type holds."""
    by_type = of_type(dtype)
    if not by_type.is_integer:
        return values
    lowest, highest = max(values.lowest, by_type.lowest), min(values.highest, by_type.highest)
    if lowest > highest:
        return by_type
    like = replace(values, is_integer=True, from_integers=True)
    return made(
        lowest,
        highest,
        values.expected_lowest,
        values.expected_highest,
        smallest=max(values.smallest, 1.0),
        like=like,
    )


def _carried(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    types = [None if operand is None else operand.dtype for operand in signature.inputs]
    floats_in = [
        r
        for r, dtype in zip_longest(inputs, types)
        if r is not None and not (dtype and of_type(dtype).is_integer)
    ]
    large = [r for r in floats_in if r.magnitude > arithmetic.LARGE]
    floats = [operand is not None and not of_type(operand.dtype).is_integer for operand in signature.outputs]
    if floats_in and not any(r.varies for r in floats_in):
        # An epsilon from a branch: of constants alone, so a constant.
        one = replace(hull(floats_in), lowest=-INFINITY, highest=INFINITY, is_integer=False)
        one = replace(one, from_integers=False)
        return tuple(one if is_float else UNKNOWN_INTEGER for is_float in floats)
    if not large:
        return ()
    extreme = max(large, key=lambda r: r.magnitude)
    one = made(-INFINITY, INFINITY, -extreme.magnitude, extreme.magnitude, like=UNKNOWN.named(extreme.source))
    return tuple(one if is_float else UNKNOWN_INTEGER for is_float in floats)
