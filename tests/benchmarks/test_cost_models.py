"""Performance models at scale: what is collected resumes, and curves say what they are said to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_models import collect, curves
from campo_onnx.calibrate.fit import Sample
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.runtime.timing import Timing
from campo_onnx.targets.detect import target_of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few shapes of two operators, two Casts."""
    monkeypatch.setattr(collect, "SAMPLING", replace(collect.SAMPLING, count=21))
    monkeypatch.setattr(collect, "OPS", ("Relu", "Add"))
    monkeypatch.setattr(collect, "CASTS", 1)


def run(first: NodeTimer, again: NodeTimer, finished: Path, most: int) -> list[str]:
    """Do a part of the work, at made-up times that differ by a tenth from store to store."""
    done = []
    for timer, signature in collect.to_do(first, again, finished):
        if len(done) == most:
            break
        elements = max(operand.elements or 0 for operand in signature.operands)
        own = 1.0 if timer is first else 1.1
        timer.store.add(
            timer.key(signature), Timing(median_us=own * (1 + elements), spread_us=0.0, repeats=5)
        )
        done.append(f"{'again' if timer is again else 'first'} {signature.op.label}")
    return done


@pytest.mark.usefixtures("small")
def test_runs_add_up_and_do_nothing_twice(tmp_path: Path) -> None:
    first, again = collect.timers(tmp_path / "t.sqlite")
    finished = tmp_path / "finished"
    done = [run(first, again, finished, most) for most in (20, 10, 1000, 1000)]
    assert sum(one.startswith("first") for part in done for one in part) == 2 + 2 * 42 == len(first.store)
    assert [one for part in done[:3] for one in part if one.startswith("again")] == ["again Relu"] * 2
    assert done[3] == ["again Relu"] * 2 + ["again Add"] * 4  # in a run after the one that timed them
    assert finished.read_text().split() == ["Relu", "Add"]
    signatures = collect.samples_of("Relu", collect.SAMPLING)
    apart = curves.noise(signatures, first, again)
    assert apart is not None
    assert (apart["timings"], apart["median"], apart["bound"]) == pytest.approx((4, 0.1, 0.9))
    tests, pool = curves.samples_in(signatures, first, target_of(first.machine))
    assert (len(tests), len(pool)) == (21, 0)  # those drawn first are to test with


def made_up(count: int, low_us: Callable[[float], float]) -> list[Sample]:
    times = np.random.default_rng(0).uniform(1.0, 1000.0, count)
    return [Sample(fp32_us=t, low_us=low_us(t), events={"size": t, "rate": 1 / t}) for t in times]


def test_a_curve_of_what_is_linear_is_flat_and_of_what_is_not_is_poor() -> None:
    exact = made_up(120, lambda t: 0.5 * t + 3.0)
    by_size = curves.curve((exact[:100], exact[100:]), "non-negative")
    assert set(by_size) == {8, 16}
    assert by_size[8] == pytest.approx(1.0, abs=0.01)  # predictions stay within the ratios that occurred
    assert curves.sufficient(by_size) == 8
    bent = made_up(1100, lambda t: t * (2 + np.sin(t / 20)))
    assert curves.curve((bent[:100], bent[100:]), "paper")[1000] < 0.9
    assert curves.linearity((bent[:100], [])) < 0.99


def test_samples_suffice_from_where_nothing_is_gained_any_more() -> None:
    assert curves.sufficient({8: 0.95, 16: 0.7, 32: 0.945, 64: 0.95}) == 32
    assert curves.sufficient({8: 0.2, 16: 0.95}) == 16
    assert curves.sufficient({}) is None


def test_casts_lie_on_a_line() -> None:
    first = NodeTimer(machine=collect.machine("cpu", 1), store=Store())
    for elements, signature in collect.casts():
        timing = Timing(median_us=2.0 + 1e-3 * elements, spread_us=0.0, repeats=5)
        first.store.add(first.key(signature), timing)
    for by_size in curves.cast_curves(first).values():
        assert by_size[8] == pytest.approx(1.0)
        assert set(by_size) == {*curves.SIZES}
