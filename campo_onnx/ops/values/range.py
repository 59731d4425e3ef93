"""Range of the values of one tensor."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

INFINITY = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """Bounds that are proved, and values that the tensor is taken to hold.

    The two serve different ends. A bound that is far away says nothing: interval arithmetic is loose. A
    value that the tensor is taken to hold (a mask of -1e9, the reciprocal of an epsilon) says that a
    precision which cannot hold it is wrong. What nothing is known of is taken to hold values of a
    moderate size, :data:`UNKNOWN`: activations and gradients are what a low precision is made for.
    """

    # lowest, highest: proved bounds of its finite values; infinite where nothing is proved.
    lowest: float = -INFINITY
    highest: float = INFINITY
    # expected_lowest, expected_highest: the smallest and the largest value it is taken to hold.
    expected_lowest: float = -1.0
    expected_highest: float = 1.0
    smallest: float = 1.0  # smallest nonzero magnitude it is taken to hold; 1 where none is known
    is_integer: bool = False  # whether all values are integers
    from_integers: bool = False  # whether it is computed from integers and constants alone: positions, masks
    # The distance of neighbouring values, where it is: 1 of positions, 10,000 of a mask of 0 and -10,000.
    step: float = 1.0
    varies: bool = True  # whether it depends on anything but constants
    # Whether its extreme values occur only where something unknown vanishes, as in
    # 1 / sqrt(variance + epsilon). A product with what vanishes there too is not extreme.
    is_guard: bool = False
    guarded: int = 0  # of a guard: how many elements have one of their own; what vanishes with it has more
    rounding: float = 0.0  # largest error that rounding to 11 bits makes of a constant
    is_given: bool = False  # whether it is an input of the graph as it is: a weight, a scale, data
    is_window: bool = False  # whether it weighs values and their squares, as for a variance
    source: str = ""  # the tensor that its extreme values come from; `""` where none is known

    def __post_init__(self) -> None:
        if not self.lowest <= self.expected_lowest <= self.expected_highest <= self.highest:
            raise ValueError(
                f"no range: {self.lowest} <= {self.expected_lowest} <= "
                f"{self.expected_highest} <= {self.highest} does not hold"
            )
        if not self.smallest > 0:
            raise ValueError(f"the smallest nonzero magnitude is {self.smallest}")

    @property
    def magnitude(self) -> float:
        """Largest magnitude it is taken to hold."""
        return max(abs(self.expected_lowest), abs(self.expected_highest))

    @property
    def extreme(self) -> float:
        """The value of the largest magnitude it is taken to hold."""
        if abs(self.expected_lowest) > abs(self.expected_highest):
            return self.expected_lowest
        return self.expected_highest

    @property
    def bound(self) -> float:
        """Proved bound of its magnitude."""
        return max(abs(self.lowest), abs(self.highest))

    @property
    def weighs(self) -> bool:
        """Whether it is weights of one sign, which make a product a sum: constants, or a window."""
        has_one_sign = self.expected_lowest >= 0.0 or self.expected_highest <= 0.0
        return (self.is_window or not self.varies) and has_one_sign and self.magnitude > 0.0

    @property
    def is_bounded(self) -> bool:
        """Whether a bound is proved on both sides."""
        return math.isfinite(self.lowest) and math.isfinite(self.highest)

    def named(self, source: str) -> "ValueRange":
        """The same range with another source."""
        return replace(self, source=source)


UNKNOWN = ValueRange()
"""Range of an activation, a weight or a gradient: unknown."""

GIVEN = ValueRange(is_given=True)
"""Range of an input of the graph."""

UNKNOWN_INTEGER = ValueRange(expected_lowest=0.0, is_integer=True, from_integers=True)
"""An index, a label or a count."""

BOOLEAN = ValueRange(
    lowest=0.0, highest=1.0, expected_lowest=0.0, expected_highest=1.0, is_integer=True, from_integers=True
)


def between(lowest: float, highest: float, *, like: ValueRange = UNKNOWN) -> ValueRange:
    """A range with proved bounds; it is taken to hold values of moderate size within them."""
    return made(lowest, highest, like.expected_lowest, like.expected_highest, like=like)


def made(
    lowest: float,
    highest: float,
    expected_lowest: float,
    expected_highest: float,
    *,
    smallest: float = 1.0,
    like: ValueRange = UNKNOWN,
    is_guard: bool | None = None,
) -> ValueRange:
    """Put a range together; what it is taken to hold is brought within the bounds."""
    low, high = _number(lowest, -INFINITY), _number(highest, INFINITY)
    first = min(max(_number(expected_lowest, -1.0), low), high)
    last = max(min(_number(expected_highest, 1.0), high), first)
    return replace(
        like,
        lowest=low,
        highest=high,
        expected_lowest=first,
        expected_highest=last,
        smallest=smallest if 0.0 < smallest < INFINITY else 1.0,
        is_guard=like.is_guard if is_guard is None else is_guard,
    )


def exactly(value: float) -> ValueRange:
    """The range of a constant."""
    is_integer = math.isfinite(value) and float(value).is_integer()
    if not math.isfinite(value):  # an infinity is one in every precision
        return ValueRange(varies=False)
    return ValueRange(
        lowest=value,
        highest=value,
        expected_lowest=value,
        expected_highest=value,
        smallest=abs(value) or 1.0,
        is_integer=is_integer,
        from_integers=is_integer,
        step=abs(value) or 1.0,
        varies=False,
    )


def hull(ranges: Iterable[ValueRange]) -> ValueRange:
    """Range of a tensor that takes its values from any of several."""
    parts = tuple(ranges)
    if not parts:
        return UNKNOWN
    if len(parts) == 1:
        return parts[0]
    return ValueRange(
        lowest=min(r.lowest for r in parts),
        highest=max(r.highest for r in parts),
        expected_lowest=min(r.expected_lowest for r in parts),
        expected_highest=max(r.expected_highest for r in parts),
        smallest=min(r.smallest for r in parts),
        is_integer=all(r.is_integer for r in parts),
        from_integers=from_integers(parts),
        step=min(r.step for r in parts),
        varies=any(r.varies for r in parts),
        is_guard=any(r.is_guard for r in parts),
        guarded=max(r.guarded for r in parts),
        rounding=max(r.rounding for r in parts),
        is_given=all(r.is_given for r in parts),
        source=source_of(parts),
    )


def from_integers(ranges: Iterable[ValueRange]) -> bool:
    """Whether what is computed from these comes from integers and constants alone."""
    parts = tuple(ranges)
    return any(r.from_integers for r in parts) and all(r.from_integers or not r.varies for r in parts)


def source_of(ranges: Iterable[ValueRange]) -> str:
    """The source of the most extreme of several ranges."""
    named = [r for r in ranges if r.source]
    return max(named, key=_distance).source if named else ""


def _distance(values: ValueRange) -> float:
    """Distance of its values from 1, in powers of two."""
    return max(abs(math.log2(values.magnitude)) if values.magnitude else 0.0, -math.log2(values.smallest))


def _number(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
