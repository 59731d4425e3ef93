"""Medians, their intervals, and how often a difference is claimed."""

from itertools import pairwise

import numpy as np
import pytest

from campo_onnx.bench.result import Interval, Outcome
from campo_onnx.bench.statistics import interval_over_runs, median_interval, paired_speedup, verdict

ROUNDS = 50
CASES = 300


def steps_us(generator: np.random.Generator, scale: float = 1.0) -> np.ndarray:
    """Skewed, with disturbed steps far out, as step times are."""
    times = 1000 * np.exp(0.03 * np.abs(generator.standard_normal(ROUNDS)))
    times[generator.random(ROUNDS) < 0.05] *= 3
    return times * scale


def verdicts(scale: float, tolerance: float) -> list[Outcome]:
    outcomes = []
    for seed in range(CASES):
        generator = np.random.default_rng(seed)
        speedup = paired_speedup(steps_us(generator), steps_us(generator, scale))
        assert speedup is not None
        outcomes.append(verdict(speedup, tolerance))
    return outcomes


def test_interval_of_known_ranks() -> None:
    # For 100 samples the ranks 40 and 61 bound the median: the textbook's binomial interval.
    shuffled = np.random.default_rng(0).permutation(np.arange(1.0, 101.0))
    assert median_interval(shuffled) == Interval(median=50.5, low=40.0, high=61.0)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_few_samples_give_their_range(count: int) -> None:
    samples = [float(i) for i in range(count)]
    interval = median_interval(samples)
    assert (interval.low, interval.high) == (samples[0], samples[-1])


def test_more_samples_narrow_the_interval() -> None:
    generator = np.random.default_rng(0)
    widths = [
        interval.high - interval.low
        for count in (10, 100, 1000, 10_000)
        for interval in [median_interval(generator.exponential(size=count))]
    ]
    assert all(wider > narrower for wider, narrower in pairwise(widths))


@pytest.mark.parametrize("count", [6, 7, 20, 50, 101])
def test_interval_is_the_narrowest_that_covers_95_percent(count: int) -> None:
    from scipy.stats import binom  # here: it takes a second, in every process that collects tests

    interval = median_interval([float(rank) for rank in range(1, count + 1)])
    low, high = int(interval.low), int(interval.high)

    def coverage(low: int, high: int) -> float:
        """Chance that at least `low` and fewer than `high` samples lie below the median."""
        return float(binom.cdf(high - 1, count, 0.5) - binom.cdf(low - 1, count, 0.5))

    assert coverage(low, high) >= 0.95
    assert coverage(low + 1, high - 1) < 0.95


def test_equal_graphs_differ_no_more_often_than_stated() -> None:
    claimed = sum(outcome is not Outcome.NO_DIFFERENCE for outcome in verdicts(1.0, tolerance=0.0))
    assert 0.01 <= claimed / CASES <= 0.06


def test_tolerance_silences_differences_nobody_cares_for() -> None:
    assert set(verdicts(1.002, tolerance=0.01)) == {Outcome.NO_DIFFERENCE}


def test_five_percent_are_found() -> None:
    assert verdicts(1.05, tolerance=0.01).count(Outcome.SLOWER) >= 0.99 * CASES
    assert verdicts(1 / 1.05, tolerance=0.01).count(Outcome.FASTER) >= 0.99 * CASES


def test_drift_that_hits_both_cancels() -> None:
    generator = np.random.default_rng(0)
    drift = np.linspace(1, 3, ROUNDS)  # a device that grows hot
    speedup = paired_speedup(steps_us(generator) * drift, steps_us(generator, 0.9) * drift)
    assert speedup is not None
    assert speedup.low < 1 / 0.9 < speedup.high
    assert verdict(speedup, 0.01) is Outcome.FASTER


def test_every_run_is_in_the_interval() -> None:
    generator = np.random.default_rng(0)
    steady = [list(steps_us(generator)) for _ in range(6)]
    runs = [len(part) for part in steady]
    samples = [sample for part in steady for sample in part]
    assert interval_over_runs(samples, []) == median_interval(samples)
    interval = interval_over_runs(samples, runs)
    assert interval.median == median_interval(samples).median
    medians = [float(np.median(part)) for part in steady]
    assert interval.low == min(median_interval(samples).low, *medians)
    assert interval.high == max(median_interval(samples).high, *medians)


def test_a_graph_that_failed_early_has_fewer_samples_than_runs_say() -> None:
    interval = interval_over_runs([1.0] * 7, [5, 5, 5])
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_pairs_need_rounds_in_common() -> None:
    assert paired_speedup([], [1.0] * 10) is None
    assert paired_speedup([1.0] * 5, [1.0] * 10) is None
    assert paired_speedup([2.0] * 6, [1.0] * 10) == Interval(median=2.0, low=2.0, high=2.0)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.011, 1.2, Outcome.FASTER),
        (1.01, 1.2, Outcome.NO_DIFFERENCE),
        (0.8, 0.99, Outcome.NO_DIFFERENCE),
        (0.8, 0.989, Outcome.SLOWER),
        (0.5, 2.0, Outcome.NO_DIFFERENCE),
    ],
)
def test_verdict_at_the_edges(low: float, high: float, outcome: Outcome) -> None:
    assert verdict(Interval(median=(low + high) / 2, low=low, high=high), 0.01) is outcome
