"""The loss scale of a step that is tried on drawn values: the one that a loss scaler ends with."""

from collections.abc import Callable
from math import log2

LOSS_SCALE = 1024.0
"""Of drawn batches, where the graph scales its loss: few steps overflow or underflow with it."""

LARGEST = 2.0**24
"""Beyond it a loss scaler does not go."""


def settled_scale(overflows: Callable[[float], bool], *, first_overflows: bool) -> float:
    """Search for the largest power of two with which a step does not overflow.

    A loss scaler halves its scale when a gradient overflows and doubles it when none did for long, so that is
    where it stays. Small gradients underflow as little as they can there.

    `overflows`: whether the step overflows with a scale; asked four times at most.
    `first_overflows`: whether it does with :data:`LOSS_SCALE`.

    Returns 1 where the step overflows with every scale.

    >>> settled_scale(lambda scale: scale > 100_000, first_overflows=False)
    65536.0
    """
    first = round(log2(LOSS_SCALE))
    finite, too_large = (0, first) if first_overflows else (first, round(log2(LARGEST)) + 1)
    while too_large - finite > 1:
        middle = (finite + too_large) // 2
        if overflows(2.0**middle):
            too_large = middle
        else:
            finite = middle
    return 2.0**finite
