"""Values of functions of one element, or of a few side by side."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values import arithmetic
from campo_onnx.ops.values.range import (
    INFINITY,
    UNKNOWN,
    ValueRange,
    between,
    exactly,
    from_integers,
    hull,
    made,
)
from campo_onnx.ops.values.rule import Ranges, Rule, at, present


def _vanishes(signature: Signature, inputs: Ranges) -> bool:
    """Whether one factor may vanish where the other is a guard.

    A deviation from the mean does, and a sum of products with it; a scale per channel does not, which is an
    input of the graph, or is shared by several guards.
    """
    guard = next((i for i in (0, 1) if (values := inputs[i]) is not None and values.is_guard), None)
    if guard is None:
        return True
    other, product = signature.inputs[1 - guard], signature.outputs[0]
    if other is None or product is None or other.shape is None or product.shape is None:
        return True
    if other.elements < product.elements:
        return False
    values, factor = inputs[guard], inputs[1 - guard]
    is_given = factor is not None and factor.is_given
    return not is_given or values is None or other.elements > values.guarded


def div(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Quotients."""
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    return (arithmetic.divided(a, b, vanishes=_vanishes(signature, inputs)),)


def _same_operand(signature: Signature, first: int = 0, second: int = 1) -> bool:
    a, b = signature.inputs[first], signature.inputs[second]
    return a is not None and b is not None and a.name == b.name


def pairwise(combine: Callable[[ValueRange, ValueRange], ValueRange]) -> Rule:
    """Make a rule that combines the inputs one after another."""

    def rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        ranges = present(inputs)
        return (reduce(combine, ranges),) if ranges else ()

    return rule


def gated_add(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """``x + y * gate``."""
    x, y, gate = (r or UNKNOWN for r in inputs[:3])
    is_square = _same_operand(signature, 1, 2)
    return (arithmetic.added(x, arithmetic.multiplied(y, gate, is_square=is_square)),)


def mixed(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """``x * number + y * gate`` of one stream; a sum of several is not followed."""
    if signature.attribute("num_branches", 0) != 1:
        return (UNKNOWN,)
    x, y, gate = (r or UNKNOWN for r in inputs[:3])
    number = exactly(1.0) if len(inputs) < 4 else inputs[3] or UNKNOWN
    own = arithmetic.multiplied(x, number)
    return (arithmetic.added(own, arithmetic.multiplied(y, gate, is_square=_same_operand(signature, 1, 2))),)


def mul(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Products, or squares where both inputs are the same tensor."""
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    is_square, vanishes = _same_operand(signature), _vanishes(signature, inputs)
    return (arithmetic.multiplied(a, b, is_square=is_square, vanishes=vanishes),)


def sub(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Differences; zero where both inputs are the same tensor."""
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    if _same_operand(signature):
        return (exactly(0.0),)
    return (arithmetic.added(a, arithmetic.negated(b)),)


def mean(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Means of one value of each input."""
    any_of = hull(present(inputs))
    return (replace(any_of, is_integer=False),)


def magnitude(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values without their sign."""
    one = inputs[0] or UNKNOWN
    lowest, first = (
        0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
        for low, high in ((one.lowest, one.highest), (one.expected_lowest, one.expected_highest))
    )
    return (made(lowest, one.bound, first, one.magnitude, smallest=one.smallest, like=one),)


def clip(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values brought between two limits."""
    clipped = inputs[0] or UNKNOWN
    for position, name, combine in ((1, "min", arithmetic.larger), (2, "max", arithmetic.smaller)):
        limit = at(inputs, position)
        if limit is None and name in signature.attributes:
            limit = exactly(float(signature.attributes[name]))
        if limit is not None:
            clipped = combine(clipped, limit)
    return (clipped,)


def relu(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Values that are not negative."""
    one = inputs[0] or UNKNOWN
    return (made(max(one.lowest, 0.0), max(one.highest, 0.0), 0.0, one.expected_highest, like=one),)


def saturated_below(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """ELU and its kin: above some number below zero, and about their argument on the right."""
    one = inputs[0] or UNKNOWN
    op_type = signature.op.op_type
    alpha = abs(float(signature.attributes.get("alpha", 1.6732632 if op_type == "Selu" else 1.0)))
    gamma = abs(float(signature.attributes.get("gamma", 1.0507010 if op_type == "Selu" else 1.0)))
    floor = 0.0 if op_type == "Softplus" else -alpha * gamma
    highest = INFINITY if one.highest > 0.0 else 1.0
    like = replace(one, is_integer=False, from_integers=False, is_guard=False)
    last = max(one.expected_highest, 1.0)
    return (made(floor, highest, max(one.expected_lowest, floor), last, like=like),)


def no_larger(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """An activation like GELU: zero on the far left, its argument on the right, above -0.375 throughout."""
    one = inputs[0] or UNKNOWN
    like = replace(one, is_integer=False, from_integers=False, is_guard=False)
    result = made(
        -0.375, max(one.highest, 0.0), max(one.expected_lowest, -0.375), one.expected_highest, like=like
    )
    return (result, *(UNKNOWN for _ in signature.outputs[1:]))


def rounded(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Integers next to the values."""
    one = inputs[0] or UNKNOWN
    result = made(
        one.lowest - 1.0,
        one.highest + 1.0,
        one.expected_lowest,
        one.expected_highest,
        like=replace(one, is_integer=True, is_guard=False),
    )
    return (result,)


def mod(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Remainders, smaller than the divisor."""
    a, b = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
    like = replace(UNKNOWN, is_integer=a.is_integer and b.is_integer, from_integers=from_integers((a, b)))
    return (between(-b.bound, b.bound, like=like),)


def monotone(function: Callable[[float], float]) -> Rule:
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


def logarithm(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Logarithms; that of an epsilon is moderate."""
    one = inputs[0] or UNKNOWN
    least = math.log(one.smallest)
    like = replace(one, is_integer=False, from_integers=False, is_guard=False)
    highest = _log(one.highest)
    return (
        made(_log(one.lowest), highest, min(least, -1.0), max(_log(one.expected_highest), 0.0), like=like),
    )
