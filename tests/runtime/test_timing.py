"""Medians, slopes and how many copies to take."""

import time

import pytest

from campo_onnx.runtime.timing import Effort, copies_for, measure, slope, timing_of


def sleeping(ms: float):
    return lambda: time.sleep(ms / 1000)


def test_one_slow_repeat_does_not_move_the_median() -> None:
    timing = timing_of([10.0, 11.0, 12.0, 900.0, 9.0])
    assert timing.median_us == 11.0
    assert timing.spread_us == 2.0
    assert timing.repeats == 5


def test_slope_leaves_out_what_every_run_costs() -> None:
    timing = slope(sleeping(5), sleeping(11), extra=3, effort=Effort(warmup=1, repeats=7))
    assert timing.median_us == pytest.approx(2000, rel=0.25)
    assert timing.repeats == 4  # the faster half


def test_slope_forgets_disturbed_rounds() -> None:
    runs = iter([1, 30, 1, 1, 25, 1, 1, 1, 40])
    timing = slope(sleeping(1), lambda: time.sleep(0.002 + next(runs) / 1000), 1, Effort(warmup=0, repeats=9))
    assert timing.median_us == pytest.approx(2000, rel=0.25)


def test_budget_ends_the_repeats() -> None:
    effort = Effort(warmup=0, repeats=1000, least=3, budget_s=0.02)
    assert 3 <= measure(sleeping(5), effort).repeats < 10
    assert measure(sleeping(30), effort).repeats == 3


def test_warmup_does_not_count() -> None:
    calls = []
    effort = Effort(warmup=4, repeats=2, least=1)
    assert measure(lambda: calls.append(1), effort).repeats == 2
    assert len(calls) == 6


def test_copies_stay_within_memory_and_reason() -> None:
    assert copies_for(1e6, node_bytes=1, limit_bytes=1e9) == 1
    assert copies_for(0.1, node_bytes=1, limit_bytes=1e9) == 32
    assert copies_for(50.0, node_bytes=100, limit_bytes=450) == 3
