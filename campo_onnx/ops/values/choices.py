"""Values of what moves, selects, fills, draws or counts."""

import math
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.range import (
    BOOLEAN,
    INFINITY,
    UNKNOWN,
    UNKNOWN_INTEGER,
    ValueRange,
    exactly,
    hull,
    made,
)
from campo_onnx.ops.values.rule import Ranges, at, present, shape_of


def first_input(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of the first input, moved or selected."""
    one = inputs[0] or UNKNOWN
    return (one,) * len(signature.outputs)


def hull_of_all(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of all inputs."""
    return (hull(present(inputs)),)


def with_zero(one: ValueRange) -> ValueRange:
    """The values, and zeros."""
    return replace(
        one,
        lowest=min(one.lowest, 0.0),
        highest=max(one.highest, 0.0),
        expected_lowest=min(one.expected_lowest, 0.0),
        expected_highest=max(one.expected_highest, 0.0),
    )


def pad(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of the first input, and what fills its borders."""
    fill = at(inputs, 2)
    if fill is None and "value" in signature.attributes:  # until opset 11
        fill = exactly(float(signature.attributes["value"]))
    one = inputs[0] or UNKNOWN
    if signature.attributes.get("mode", "constant") not in ("constant", b"constant"):
        return (one,)
    return (with_zero(one) if fill is None else hull((one, fill)),)


def where(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of the second and the third input: of constants alone a constant, if one condition decides."""
    either = hull(r for r in inputs[1:3] if r is not None)
    sizes = shape_of(signature, 0)
    is_one_condition = sizes is not None and math.prod(sizes) == 1
    return (either if is_one_condition else replace(either, varies=True),)


def scatter(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of the data and of the updates, which may add up."""
    either = hull(r for r in (inputs[0], inputs[2]) if r is not None)
    if signature.attributes.get("reduction", "none") in ("none", b"none"):
        return (either,)
    return (replace(either, lowest=-INFINITY, highest=INFINITY),)


def constant_of_shape(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """The value it is filled with."""
    value = signature.attributes.get("value")
    return (exactly(0.0 if value is None else float(np.ravel(value)[0])),)


def cast(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """The values as they are: what a type cannot hold is not this rule's business."""
    one = inputs[0] or UNKNOWN
    target = signature.outputs[0]
    if target is not None and target.dtype == TensorProto.BOOL:
        return (replace(BOOLEAN, varies=one.varies),)
    return (one,)


def dropout(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """The values scaled by 1 / (1 - ratio), and zeros; a mask."""
    ratio = at(inputs, 1)
    share = 0.5 if ratio is None else (ratio.highest if not ratio.varies else 1.0)
    scale = 1.0 / (1.0 - share) if 0.0 <= share < 1.0 else INFINITY
    one = with_zero(inputs[0] or UNKNOWN)
    lowest, highest = arithmetic.times(one.lowest, scale), arithmetic.times(one.highest, scale)
    like = replace(one, is_integer=False, from_integers=False)
    return (made(lowest, highest, one.expected_lowest, one.expected_highest, like=like), BOOLEAN)


def bias_dropout(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Range of dropout of the values and a bias, on top of a residual."""
    biased = arithmetic.added(inputs[0] or UNKNOWN, inputs[1] or UNKNOWN)
    dropped, mask = dropout(signature, (biased, at(inputs, 3)))
    residual = at(inputs, 2)
    return (dropped if residual is None else arithmetic.added(dropped, residual), mask)


def uniform(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Draws between two bounds."""
    low, high = (float(signature.attributes.get(name, d)) for name, d in (("low", 0.0), ("high", 1.0)))
    return (made(low, high, low, high, like=UNKNOWN),)


def normal(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Draws that are all but surely within four deviations of the mean."""
    mean, scale = (float(signature.attributes.get(name, d)) for name, d in (("mean", 0.0), ("scale", 1.0)))
    return (made(-INFINITY, INFINITY, mean - 4 * scale, mean + 4 * scale, like=UNKNOWN),)


def positions(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values from the start to the limit."""
    start, limit, _ = (r or UNKNOWN for r in inputs)
    return (hull((start, limit)),)


def index(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Positions along an axis of the first input."""
    shape = shape_of(signature, 0)
    highest = float(max(shape, default=1)) if shape is not None else INFINITY
    return (made(0.0, highest, 0.0, 1.0, like=UNKNOWN_INTEGER),)


def top_k(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values of the first input, and positions."""
    return (inputs[0] or UNKNOWN, *index(signature, inputs))


def size(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Sizes of the first input."""
    shape = shape_of(signature, 0)
    if shape is None:
        return (made(0.0, INFINITY, 0.0, 1.0, like=UNKNOWN_INTEGER),)
    if signature.op.op_type == "Size":
        return (exactly(float(math.prod(shape))),)
    return (hull(exactly(float(size)) for size in shape) if shape else UNKNOWN_INTEGER,)
