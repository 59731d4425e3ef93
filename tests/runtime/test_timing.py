"""Medians, slopes and how many copies to take, on a clock that only steps move."""

import math

import pytest

from campo_onnx.runtime.timing import Effort, Timing, copies_for, measure, slope, timing_of


def test_one_slow_repeat_does_not_move_the_median() -> None:
    timing = timing_of([10.0, 11.0, 12.0, 900.0, 9.0])
    assert timing.median_us == 11.0
    assert timing.spread_us == 2.0
    assert timing.repeats == 5


def test_slope_leaves_out_what_every_run_costs(clock) -> None:
    timing = slope(clock.taking(5000), clock.taking(11_000), extra=3, effort=Effort(warmup=1, repeats=7))
    assert timing == Timing(median_us=2000.0, spread_us=0.0, repeats=4)  # the faster half


def test_slope_forgets_disturbed_rounds(clock) -> None:
    many = clock.taking(3000, 32_000, 3000, 3000, 27_000, 3000, 3000, 3000, 42_000)
    timing = slope(clock.taking(1000), many, 1, Effort(warmup=0, repeats=9))
    assert timing == Timing(median_us=2000.0, spread_us=0.0, repeats=5)


def test_budget_ends_the_repeats(clock) -> None:
    effort = Effort(warmup=0, repeats=1000, least=3, budget_s=0.02)
    assert measure(clock.taking(5000), effort).repeats == 4
    assert measure(clock.taking(30_000), effort).repeats == 3
    assert measure(clock.taking(0), effort).repeats == 1000


def test_warmup_does_not_count(clock) -> None:
    effort = Effort(warmup=4, repeats=2, least=1)
    timing = measure(clock.taking(900, 900, 900, 900, 10), effort)
    assert timing == Timing(median_us=10.0, spread_us=0.0, repeats=2)


def test_copies_stay_within_memory_and_reason() -> None:
    assert copies_for(1e6, node_bytes=1, limit_bytes=1e9) == 1
    assert copies_for(0.1, node_bytes=1, limit_bytes=1e9) == 32
    assert copies_for(50.0, node_bytes=100, limit_bytes=450) == 3


@pytest.mark.parametrize(
    ("median_us", "spread_us", "repeats"),
    [(math.nan, 0, 1), (math.inf, 0, 1), (1, -1, 1), (1, math.nan, 1), (1, 0, -1)],
)
def test_what_no_clock_shows(median_us: float, spread_us: float, repeats: int) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        Timing(median_us=median_us, spread_us=spread_us, repeats=repeats)
    assert Timing(median_us=-0.1, spread_us=0.0, repeats=1).median_us == -0.1  # a difference may be
