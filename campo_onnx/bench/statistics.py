"""From samples to intervals and verdicts, without assuming how times are distributed."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from campo_onnx.bench.result import Interval, Outcome

CONFIDENCE = 0.95
"""Of every interval."""

LEAST_SAMPLES = 6
"""With fewer, not even the whole range of the samples covers the median with 95 %."""


RESOLUTION_US = 5.0
"""Sessions of one and the same graph differ by some microseconds a step, from run to run of the
program: by where their buffers come to lie. No number of rounds averages that out."""


def resolvable(tolerance: float, first_us: float) -> float:
    """Widen a tolerance to what can be told apart at all.

    Parameters
    ----------
    tolerance
        The one asked for.
    first_us
        Median step of the first graph.

    Examples
    --------
    >>> resolvable(0.01, 10_000.0), resolvable(0.01, 100.0)
    (0.01, 0.05)
    """
    return max(tolerance, RESOLUTION_US / first_us)


def median_interval(samples: Sequence[float]) -> Interval:
    """Median with its 95 % confidence interval by order statistics.

    How many of n samples lie below the true median is binomial(n, 1/2) whatever they are
    distributed like, so two of the ordered samples bound it. Exact, and nothing is drawn at random.

    Parameters
    ----------
    samples
        At least one. With fewer than six the interval is their range.

    Examples
    --------
    >>> median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    Interval(median=3.5, low=1.0, high=6.0)
    """
    ordered = np.sort(np.asarray(samples, np.float64))
    # The largest rank below which the median lies in at most 2.5 % of all cases, and above likewise.
    rank = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)))
    return Interval(
        median=float(np.median(ordered)), low=float(ordered[rank - 1]), high=float(ordered[-rank])
    )


def interval_over_starts(samples: Sequence[float], starts: Sequence[int]) -> Interval:
    """Median with an interval that no start of the graphs contradicts.

    A graph that is loaded anew may run faster or slower for as long as it is loaded: its threads and
    buffers come to lie elsewhere. Rounds of one start do not see that, however many there are. So
    the interval is widened to the median of every start. That of six starts or more alone covers the
    median over all starts with 95 %, by the same argument as :func:`median_interval`.

    Parameters
    ----------
    samples
        At least one, start after start.
    starts
        How many samples each start has.

    Examples
    --------
    >>> interval_over_starts([1.0] * 50 + [3.0] * 10, [50, 10])
    Interval(median=1.0, low=1.0, high=3.0)
    """
    whole = median_interval(samples)
    ends = np.cumsum(starts)
    parts = np.split(np.asarray(samples, np.float64), ends[ends < len(samples)])
    medians = [float(np.median(part)) for part in parts if len(part)]
    return Interval(median=whole.median, low=min(whole.low, *medians), high=max(whole.high, *medians))


def paired_speedup(
    first_us: Sequence[float], this_us: Sequence[float], starts: Sequence[int] = ()
) -> Interval | None:
    """Median ratio of two graphs' steps in the same round, above 1 where this one is faster.

    Parameters
    ----------
    first_us, this_us
        Steps by round. The longer is cut to the shorter: a graph that failed has fewer.
    starts
        Rounds of each start, see :func:`interval_over_starts`.

    Returns
    -------
    Interval or None
        None where too few rounds are shared for an interval.
    """
    ratios = [first / this for first, this in zip(first_us, this_us, strict=False)]
    return interval_over_starts(ratios, starts) if len(ratios) >= LEAST_SAMPLES else None


def verdict(speedup: Interval, tolerance: float) -> Outcome:
    """Say what a speed-up is worth.

    Parameters
    ----------
    speedup
        With its interval.
    tolerance
        Where the interval touches ``[1 - tolerance, 1 + tolerance]``, no difference was shown.

    Examples
    --------
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
