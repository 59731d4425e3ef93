"""Values of sums, products, quotients and powers of two tensors."""

import math
from dataclasses import replace

from campo_onnx.ops.values.range import INFINITY, UNKNOWN, ValueRange, from_integers, made, source_of

LARGE = 2.0**14
"""From here on a value is not an activation."""

GUARD = 2.0**-7
"""A positive constant below this, added to something unknown, keeps it from vanishing."""

_FAR = 2.0**10
"""Two values beyond this add up: they are masks, not activations."""

_SCALED = 2.0**8
"""Growth by constants beyond which a product of matrices carries it on."""


def _inherited(a: ValueRange, b: ValueRange, *, keeps_integers: bool) -> ValueRange:
    """Everything but the bounds of what is computed from `a` and `b`."""
    return replace(
        UNKNOWN,
        is_integer=keeps_integers and a.is_integer and b.is_integer,
        from_integers=from_integers((a, b)),
        step=min(a.step, b.step),
        varies=a.varies or b.varies,
        guarded=max(a.guarded, b.guarded),
        source=source_of((a, b)),
    )


def times(x: float, y: float) -> float:
    """A product in which nothing is larger than zero is zero.

    >>> times(0.0, float("inf"))
    0.0
    """
    return 0.0 if x == 0.0 or y == 0.0 else x * y


def negated(a: ValueRange) -> ValueRange:
    """-a."""
    return replace(
        a,
        lowest=-a.highest,
        highest=-a.lowest,
        expected_lowest=-a.expected_highest,
        expected_highest=-a.expected_lowest,
    )


def added(a: ValueRange, b: ValueRange) -> ValueRange:
    """A + b.

    A constant that is tiny beside what it is added to is a guard: it counts where the other vanishes.
    """
    like = _inherited(a, b, keeps_integers=True)
    lowest, highest = a.lowest + b.lowest, a.highest + b.highest
    if a.varies and b.varies:  # two unknown terms are no larger than one: sums of sums would grow without end
        first = min(a.expected_lowest, b.expected_lowest)
        last = max(a.expected_highest, b.expected_highest)
        if min(-a.expected_lowest, -b.expected_lowest) > _FAR:
            first = a.expected_lowest + b.expected_lowest
        if min(a.expected_highest, b.expected_highest) > _FAR:
            last = a.expected_highest + b.expected_highest
    else:
        first, last = a.expected_lowest + b.expected_lowest, a.expected_highest + b.expected_highest
    smallest, is_guard = 1.0, False
    if not like.varies:
        smallest = max(min(abs(first), abs(last)), 0.0) if first * last > 0 else min(a.smallest, b.smallest)
    else:
        constants = [r for r in (a, b) if not r.varies and 0 < r.magnitude < GUARD]
        guards = [r for r in (a, b) if r.is_guard]
        if constants:
            smallest, is_guard = min(constants[0].magnitude, constants[0].smallest), True
        elif guards and all(r.is_guard or not r.varies for r in (a, b)):
            smallest, is_guard = max(a.smallest, b.smallest), True
    return made(lowest, highest, first, last, smallest=smallest, like=like, is_guard=is_guard)


def multiplied(a: ValueRange, b: ValueRange, *, is_square: bool = False, vanishes: bool = True) -> ValueRange:
    """A * b; `is_square` where both are one tensor, `vanishes` where one does where the other is a guard."""
    like = replace(_inherited(a, b, keeps_integers=True), step=_factor(a) * _factor(b))
    corners = [times(x, y) for x in (a.lowest, a.highest) for y in (b.lowest, b.highest)]
    lowest, highest = min(corners), max(corners)
    if is_square:
        lowest = max(lowest, 0.0)
    if (a.is_guard or b.is_guard) and vanishes and not _stays_guard(a, b):
        # 0 * (1 / epsilon): where one is extreme the other vanishes.
        other, guard = (a, b) if b.is_guard else (b, a)
        straddles = guard.expected_lowest < 0.0 < guard.expected_highest
        usual = 1.0 if straddles else min(abs(guard.expected_lowest), abs(guard.expected_highest)) or 1.0
        first, last = sorted((other.expected_lowest * usual, other.expected_highest * usual))
        return _moderate(lowest, highest, first, last, like)
    expected = [
        times(x, y)
        for x in (a.expected_lowest, a.expected_highest)
        for y in (b.expected_lowest, b.expected_highest)
    ]
    first, last = min(expected), max(expected)
    if is_square:
        first = 0.0 if a.expected_lowest <= 0.0 <= a.expected_highest else min(expected[0], expected[-1])
    is_guard = a.is_guard or b.is_guard
    if like.varies and not is_guard:
        return _moderate(lowest, highest, first, last, like)
    return made(lowest, highest, first, last, smallest=a.smallest * b.smallest, like=like, is_guard=is_guard)


def _factor(a: ValueRange) -> float:
    """The step of integers, or the one value that a constant has."""
    return abs(a.lowest) if not a.varies and a.lowest == a.highest and a.lowest else a.step


def _stays_guard(a: ValueRange, b: ValueRange) -> bool:
    return all(r.is_guard or not r.varies for r in (a, b))


def _moderate(lowest: float, highest: float, first: float, last: float, like: ValueRange) -> ValueRange:
    """Nothing is taken to be small for the constants it was multiplied by."""
    if max(abs(first), abs(last)) < 1.0:
        first, last = -1.0, 1.0
    return made(lowest, highest, first, last, like=like, is_guard=False)


def reciprocal(b: ValueRange) -> ValueRange:
    """1 / b."""
    return divided(made(1.0, 1.0, 1.0, 1.0, like=replace(UNKNOWN, varies=False)), b)


def divided(a: ValueRange, b: ValueRange, *, vanishes: bool = True) -> ValueRange:
    """A / b; `vanishes` where a does where b is a guard."""
    like = replace(_inherited(a, b, keeps_integers=False), step=a.step / (b.varies or _factor(b)))
    lowest, highest = -INFINITY, INFINITY
    if b.lowest > 0.0 or b.highest < 0.0:
        corners = [_quotient(x, y) for x in (a.lowest, a.highest) for y in (b.lowest, b.highest)]
        lowest, highest = min(corners), max(corners)
    elif b.lowest >= 0.0:
        lowest, highest = (0.0 if a.lowest >= 0.0 else lowest), (0.0 if a.highest <= 0.0 else highest)
    if b.is_guard and vanishes and not _stays_guard(a, b):
        return made(lowest, highest, a.expected_lowest, a.expected_highest, like=like, is_guard=False)
    if a.is_guard and not b.varies and b.lowest > 0.0:
        first, last = a.expected_lowest / b.lowest, a.expected_highest / b.lowest
        return made(lowest, highest, first, last, like=like, is_guard=True)
    largest = a.magnitude / b.smallest
    first = 0.0 if lowest >= 0.0 else -largest
    last = 0.0 if highest <= 0.0 else largest
    is_guard = a.is_guard or b.is_guard
    if like.varies and not is_guard:
        return _moderate(lowest, highest, first, last, like)
    smallest = a.smallest / max(b.magnitude, 1e-300)
    if is_guard:
        smallest = 1.0  # where the divisor does not vanish nothing is known of it
        if lowest >= 0.0:
            first = min(1.0, last)
    return made(lowest, highest, first, last, smallest=smallest, like=like, is_guard=is_guard)


def _quotient(x: float, y: float) -> float:
    if math.isinf(x) and math.isinf(y):
        return math.nan
    return 0.0 if x == 0.0 else x / y


def powered(a: ValueRange, exponent: ValueRange) -> ValueRange:
    """A ** exponent."""
    if exponent.varies or exponent.lowest != exponent.highest:
        like = _inherited(a, exponent, keeps_integers=False)
        if not a.varies and a.lowest == a.highest > 0.0:
            ends = exponent.lowest, exponent.highest, exponent.expected_lowest, exponent.expected_highest
            first, last, *expected = (_raised(a.lowest, x) for x in ends)
            return made(*sorted((first, last)), *sorted(expected), like=like)
        return made(0.0 if a.lowest >= 0.0 else -INFINITY, INFINITY, -1.0, 1.0, like=like)
    power = exponent.lowest
    if power == 2.0:
        return multiplied(a, a, is_square=True)
    if power == 1.0:
        return a
    if power < 0.0:
        return reciprocal(_power(a, -power))
    return _power(a, power)


def _power(a: ValueRange, power: float) -> ValueRange:
    """A ** power for a positive power."""

    def raised(x: float) -> float:
        return math.copysign(_raised(abs(x), power), x if power.is_integer() and power % 2.0 else 1.0)

    ends = [raised(a.lowest), raised(a.highest)]
    expected = [raised(a.expected_lowest), raised(a.expected_highest)]
    straddles = a.lowest < 0.0 < a.highest or a.lowest <= 0.0 <= a.highest
    lowest = min(*ends, 0.0) if straddles else min(ends)
    first = min(*expected, 0.0) if a.expected_lowest <= 0.0 <= a.expected_highest else min(expected)
    whole = power.is_integer()
    return made(
        max(lowest, 0.0) if a.lowest >= 0.0 or (whole and power % 2.0 == 0.0) else lowest,
        max(ends),
        first,
        max(expected),
        smallest=raised(a.smallest),
        like=replace(a, is_integer=a.is_integer and whole),
    )


def _raised(base: float, power: float) -> float:
    try:
        return math.pow(base, power)
    except OverflowError:
        return INFINITY


def root(a: ValueRange) -> ValueRange:
    """sqrt(a), which is taken to be of what is not negative."""

    def rooted(x: float) -> float:
        return math.sqrt(max(x, 0.0))

    return made(
        rooted(a.lowest),
        rooted(a.highest),
        rooted(a.expected_lowest),
        rooted(a.expected_highest),
        smallest=math.sqrt(a.smallest),
        like=replace(a, is_integer=False),
    )


def larger(a: ValueRange, b: ValueRange) -> ValueRange:
    """max(a, b); a tiny constant below something unknown is a guard."""
    like = _inherited(a, b, keeps_integers=True)
    first = max(a.expected_lowest, b.expected_lowest)
    guards = [r for r in (a, b) if not r.varies and 0.0 < r.expected_lowest < GUARD]
    is_guard = bool(guards) and like.varies
    smallest = first if first > 0.0 and (is_guard or not like.varies) else 1.0
    return made(
        max(a.lowest, b.lowest),
        max(a.highest, b.highest),
        first,
        max(a.expected_highest, b.expected_highest),
        smallest=smallest,
        like=like,
        is_guard=is_guard or a.is_guard or b.is_guard,
    )


def smaller(a: ValueRange, b: ValueRange) -> ValueRange:
    """min(a, b)."""
    return negated(larger(negated(a), negated(b)))


def contracted(a: ValueRange, b: ValueRange, terms: int | None) -> ValueRange:
    """Sums of `terms` products of one value of each: a product of matrices, a convolution."""
    like = replace(_inherited(a, b, keeps_integers=True), is_guard=False)
    one = multiplied(a, b)
    lowest = times(one.lowest, terms) if terms is not None else _unless_zero(one.lowest)
    highest = times(one.highest, terms) if terms is not None else _unless_zero(one.highest)
    if not like.varies or one.magnitude > _SCALED:
        grown = math.sqrt(terms or 1) if one.magnitude > LARGE and like.varies else 1.0
        return made(lowest, highest, one.expected_lowest * grown, one.expected_highest * grown, like=like)
    return made(lowest, highest, -1.0, 1.0, like=like)


def _unless_zero(bound: float) -> float:
    return 0.0 if bound == 0.0 else math.copysign(INFINITY, bound)
