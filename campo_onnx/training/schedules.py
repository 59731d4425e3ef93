"""Learning rates that change with the number of updates, for a session's settings."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from campo_onnx.errors import UsageError

Schedule: TypeAlias = Callable[[int], float]
"""Gives the value for an update from the number of updates before it, skipped ones included."""


def cosine(peak: float, total: int, *, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Rise linearly to `peak`, then fall to `floor` along half a cosine.

    `total`: updates until `floor` is reached; it stays there.
    `warmup`: updates of the rise; the first has ``peak / warmup``.

    >>> rate = cosine(1.0, 8, warmup=4)
    >>> [round(rate(count), 3) for count in range(9)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return _warmed(
        peak, total, warmup, floor, lambda share: floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2
    )


def linear(peak: float, total: int, *, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Rise linearly to `peak`, then fall linearly to `floor`; parameters as in :func:`cosine`.

    >>> rate = linear(1.0, 6, warmup=2)
    >>> [rate(count) for count in range(8)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return _warmed(peak, total, warmup, floor, lambda share: peak + (floor - peak) * share)


def stepped(first: float, milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiply by `factor` at each milestone.

    `first` is the value before the first milestone.

    >>> rate = stepped(1.0, [2, 4], factor=0.5)
    >>> [rate(count) for count in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    marks = tuple(sorted(milestones))
    return lambda count: first * factor ** sum(count >= mark for mark in marks)


def _warmed(peak: float, total: int, warmup: int, floor: float, fall: Callable[[float], float]) -> Schedule:
    if not 0 <= warmup < total:
        raise UsageError(
            f"a schedule of {total} updates with a warm-up of {warmup}",
            remedy="The warm-up must be 0 or more, and shorter than the whole.",
        )
    if not 0 <= floor <= peak < math.inf:
        raise UsageError(
            f"a schedule from {peak:g} to {floor:g}",
            remedy="Give 0 or more, finite, the peak above the floor.",
        )

    def value(count: int) -> float:
        if count < warmup:
            return peak * (count + 1) / warmup
        return fall(min(1.0, (count - warmup) / (total - warmup)))

    return value
