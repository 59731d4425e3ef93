"""From samples to intervals and verdicts, without assuming a distribution of times."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from campo_onnx.bench.result import Interval, Outcome

CONFIDENCE = 0.95
"""Of every interval."""

MIN_SAMPLES = 6
"""With fewer, not even the range of the samples covers the median with 95 %."""

RESOLUTION_US = 5.0
"""Sessions of one and the same graph differ by some microseconds per step, depending on where their
buffers lie in memory. No number of rounds averages that out."""


def resolvable(tolerance: float, first_us: float) -> float:
    """Widen a tolerance to the smallest difference that can be resolved.

    >>> resolvable(0.01, 10_000.0), resolvable(0.01, 100.0)
    (0.01, 0.05)
    """
    return max(tolerance, RESOLUTION_US / first_us)


def median_interval(samples: Sequence[float]) -> Interval:
    """Median with its 95 % confidence interval.

    The interval is scipy's, by order statistics: how many of n samples lie below the true median is
    binomial(n, 1/2) for any distribution, so two of the ordered samples bound it. It is exact. With fewer
    than six samples the interval is their range, which covers less than 95 %.

    >>> median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    Interval(median=3.5, low=1.0, high=6.0)
    """
    from scipy.stats import quantile_test  # takes half a second: only where something was measured

    values = np.asarray(samples, np.float64)
    interval: Any = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    low, high = float(interval.low), float(interval.high)
    if math.isnan(low) or math.isnan(high):
        low, high = float(values.min()), float(values.max())
    return Interval(median=float(np.median(values)), low=low, high=high)


def interval_over_runs(samples: Sequence[float], rounds_per_run: Sequence[int]) -> Interval:
    """Median with an interval that includes the median of every run.

    A graph may run faster or slower for as long as it stays loaded, because its threads and buffers are
    placed differently each time; rounds of one run do not show that, however many there are. So the
    interval is widened to the median of every run. The range of six medians alone covers the median over
    all runs with 97 %, for the reason given in :func:`median_interval`.

    >>> interval_over_runs([1.0] * 50 + [3.0] * 10, [50, 10])
    Interval(median=1.0, low=1.0, high=3.0)
    """
    whole = median_interval(samples)
    ends = np.cumsum(rounds_per_run)
    parts = np.split(np.asarray(samples, np.float64), ends[ends < len(samples)])
    medians = [float(np.median(part)) for part in parts if len(part)]
    return Interval(median=whole.median, low=min(whole.low, *medians), high=max(whole.high, *medians))


def paired_speedup(
    first_us: Sequence[float], this_us: Sequence[float], rounds_per_run: Sequence[int] = ()
) -> Interval | None:
    """Median ratio of two graphs' steps in the same round, above 1 where this graph is faster.

    Steps go by round. The longer is cut to the shorter: a graph that failed has fewer.
    """
    ratios = [first / this for first, this in zip(first_us, this_us, strict=False)]
    return interval_over_runs(ratios, rounds_per_run) if len(ratios) >= MIN_SAMPLES else None


def verdict(speedup: Interval, tolerance: float) -> Outcome:
    """Classify a speed-up.

    Where the interval touches ``[1 - tolerance, 1 + tolerance]``, no difference was shown.

    >>> verdict(Interval(median=1.3, low=1.2, high=1.4), 0.01).value
    'faster'
    >>> verdict(Interval(median=1.3, low=1.0, high=1.4), 0.01).value
    'no difference'
    """
    if speedup.low > 1 + tolerance:
        return Outcome.FASTER
    if speedup.high < 1 - tolerance:
        return Outcome.SLOWER
    return Outcome.NO_DIFFERENCE
