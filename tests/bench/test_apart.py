"""Graphs that do not fit together: one is loaded at a time, and their rounds still pair up."""

from collections.abc import Callable

import pytest

from campo_onnx.bench.apart import NOTE, time_runs_apart
from campo_onnx.bench.failure import Failure
from campo_onnx.bench.loading import Loaded
from campo_onnx.bench.rounds import RUNS, Schedule, time_rounds


class Card:
    """Has room for one graph."""

    def __init__(self) -> None:
        self.held: list[Loaded] = []
        self.order: list[str] = []
        self.step: Callable[[str], None] = lambda name: None

    def load(self, name: str) -> Loaded:
        assert not any(loaded.steps for loaded in self.held), "two graphs are loaded"
        self.order.append(name)
        if name == "huge":
            return Loaded(failures={name: Failure(text="out of memory", exit_code=6, is_memory=True)})
        self.held.append(Loaded(steps={name: lambda: self.step(name)}, peak_bytes={name: len(self.order)}))
        return self.held[-1]


def run(card: Card, *names: str, rounds: int = 12):
    schedule = Schedule(rounds=rounds, warmup=1)
    return time_runs_apart(
        names, card.load, time_rounds, schedule, seed=0, on_progress=lambda done, total: None
    )


def test_every_run_loads_every_graph_by_itself() -> None:
    card = Card()
    runs, loaded = run(card, "a", "b")
    assert len(runs) == RUNS
    assert [len(one.samples_us[name]) for one in runs for name in "ab"] == [2] * 2 * RUNS
    assert sorted(card.order) == ["a"] * RUNS + ["b"] * RUNS
    assert card.order != ["a", "b"] * RUNS, "the order is random"
    assert loaded.notes == (NOTE,)
    assert set(loaded.peak_bytes) == {"a", "b"}


def test_a_graph_that_does_not_fit_alone_fails_once() -> None:
    card = Card()
    runs, loaded = run(card, "a", "huge")
    assert card.order.count("huge") == 1
    assert set(loaded.failures) == {"huge"}
    assert sum(one.count for one in runs) == 12


def test_ctrl_c_keeps_the_runs_that_are_complete() -> None:
    card, steps = Card(), iter(range(100))

    def step(name: str) -> None:
        if next(steps) == 20:
            raise KeyboardInterrupt

    card.step = step
    runs, _ = run(card, "a", "b")
    assert 0 < len(runs) < RUNS
    assert runs[-1].interrupted
    assert all(one.count == 2 for one in runs)


def test_ctrl_c_in_the_first_run_ends_it() -> None:
    card = Card()

    def step(name: str) -> None:
        raise KeyboardInterrupt

    card.step = step
    with pytest.raises(KeyboardInterrupt):
        run(card, "a", "b")
