"""Timing: warm up, repeat, take the median, and say how much it scatters."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Step = Callable[[], float | None]
"""Runs one step and waits for its end. One that is told to another process returns the microseconds that it
took there."""

GPU_SPIN_S = 0.05
"""Work after which a GPU that was idle runs at the clock it keeps."""


LONGEST_US = 1e13
"""No step takes four months, and no sum of such times is beyond a float."""

SHORTEST_US = 1e-6
"""Shortest time that counts as measured: less is what is left of two equal times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A measured time."""

    median_us: float
    spread_us: float  # interquartile range of the repeats
    repeats: int

    def __post_init__(self) -> None:
        """Refuse what no clock shows. A difference of two times may be negative."""
        are_times = abs(self.median_us) <= LONGEST_US and 0 <= self.spread_us <= LONGEST_US
        if not are_times or self.repeats < 0:
            raise ValueError(
                f"{self.median_us} +- {self.spread_us} us of {self.repeats} repeats is not a time"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Effort of a measurement.

    `spin_s` says how long runs that do not count go on, at least: the clock of a GPU that idles is low.
    """

    warmup: int = 2
    repeats: int = 30  # runs that count, at most
    least: int = 5  # runs that count, at least, however long they take
    budget_s: float = 0.5
    spin_s: float = 0.0


def timing_of(samples_us: Sequence[float]) -> Timing:
    """Summarize repeats.

    >>> timing_of([3.0, 1.0, 2.0, 100.0]).median_us
    2.5
    """
    import numpy as np

    low, median, high = np.percentile(np.asarray(samples_us, np.float64), (25, 50, 75))
    return Timing(median_us=float(median), spread_us=float(high - low), repeats=len(samples_us))


def measure(step: Step, effort: Effort) -> Timing:
    """Time one step."""
    _warm_up((step,), effort)
    return timing_of([sample for (sample,) in _rounds((step,), effort)])


def time_behind_another(step: Step) -> float:
    """Give the microseconds of the second of two steps: the first behind a pause is slower.

    The step is one that does not time itself.
    """
    step()
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e6


def slope(few: Step, many: Step, extra: int, effort: Effort) -> Timing:
    """Time one copy of a node: two models with different numbers of copies, and their difference.

    What every run costs (the call, the wait for the device) falls out. Both models take turns, so
    that a slow moment of the machine hits both. Other programs only ever make a run slower, so the
    faster half of each model's runs counts, paired by rank.
    """
    _warm_up((few, many), effort)
    rounds = _rounds((few, many), effort)
    ranked = zip(sorted(a for a, _ in rounds), sorted(b for _, b in rounds), strict=True)
    faster = list(ranked)[: (len(rounds) + 1) // 2]
    return timing_of([(b - a) / extra for a, b in faster])


def copies_for(step_us: float, *, node_bytes: float, limit_bytes: float) -> int:
    """Number of further copies of a node that make a measurable difference.

    One copy reads and writes `node_bytes`. The difference is to be far above the clock and the jitter of a
    call.

    >>> copies_for(100.0, node_bytes=1e6, limit_bytes=1e9)
    4
    >>> copies_for(1.0, node_bytes=1e9, limit_bytes=2e9)
    1
    """
    wanted = math.ceil(_DIFFERENCE_US / max(step_us, 1.0))
    affordable = int(limit_bytes // max(node_bytes, 1.0)) - 1
    return max(1, min(wanted, affordable, _MOST_COPIES))


_DIFFERENCE_US = 400.0
_MOST_COPIES = 32


def _warm_up(steps: Sequence[Step], effort: Effort) -> None:
    done, end = 0, time.perf_counter() + effort.spin_s
    while done < effort.warmup or time.perf_counter() < end:
        for step in steps:
            step()
        done += 1


def _rounds(steps: Sequence[Step], effort: Effort) -> list[tuple[float, ...]]:
    """Microseconds of every step in every round."""
    rounds: list[tuple[float, ...]] = []
    end = time.perf_counter() + effort.budget_s
    while len(rounds) < effort.repeats and (len(rounds) < effort.least or time.perf_counter() < end):
        times = []
        for step in steps:
            began = time.perf_counter_ns()
            step()
            times.append((time.perf_counter_ns() - began) / 1000)
        rounds.append(tuple(times))
    return rounds
