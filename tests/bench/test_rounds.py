"""Rounds: who runs when, what counts, and what happens when something fails."""

import gc
import weakref
from collections import Counter

import pytest

from campo_onnx.bench.rounds import Schedule, time_rounds
from campo_onnx.errors import ModelError


class Stage:
    """Steps that take as long as they are told to, on a clock of their own."""

    def __init__(self, **durations_s: float) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []
        self.steps = {name: self.step(name, duration) for name, duration in durations_s.items()}

    def clock(self) -> float:
        return self.now_s

    def step(self, name: str, duration_s: float):
        def run() -> None:
            self.calls.append(name)
            self.now_s += duration_s

        return run

    def failing(self, name: str, after: int, error: BaseException):
        run = self.steps[name]

        def fail() -> None:
            if self.calls.count(name) == after:
                raise error
            run()

        self.steps[name] = fail

    def rounds(self, steps: int = 10, warmup: int = 0, **options):
        schedule = Schedule(
            rounds=steps,
            warmup=warmup,
            budget_s=options.pop("budget_s", None),
            spin_s=options.pop("spin_s", 0.0),
        )
        return time_rounds(self.steps, schedule, clock=self.clock, **options)


def orders(stage: Stage) -> list[str]:
    size = len(stage.steps)
    return ["".join(stage.calls[i : i + size]) for i in range(0, len(stage.calls), size)]


def test_each_round_runs_each_graph_once_and_times_it() -> None:
    stage = Stage(a=0.001, b=0.002, c=0.003)
    rounds = stage.rounds(20)
    assert all(sorted(order) == ["a", "b", "c"] for order in orders(stage))
    assert rounds.samples_us["b"] == pytest.approx([2000.0] * 20)
    assert (rounds.count, rounds.interrupted, rounds.failures) == (20, False, {})


def test_order_is_drawn_anew_and_seeded() -> None:
    draws = []
    for seed in (0, 0, 1):
        stage = Stage(a=1.0, b=1.0, c=1.0)
        stage.rounds(60, seed=seed)
        draws.append(orders(stage))
    assert draws[0] == draws[1] != draws[2]
    assert len(Counter(draws[0])) == 6  # every order comes up


def test_warmup_does_not_count() -> None:
    stage = Stage(a=1.0)
    progress: list[tuple[int, int]] = []
    rounds = stage.rounds(5, warmup=2, on_progress=lambda *done: progress.append(done))
    assert (len(stage.calls), len(rounds.samples_us["a"])) == (7, 5)
    assert progress == [(i, 7) for i in range(1, 8)]


def test_untimed_rounds_raise_the_clock() -> None:
    stage = Stage(a=0.01, b=0.01)
    rounds = stage.rounds(5, warmup=1, spin_s=0.05)
    assert len(rounds.samples_us["a"]) == 5
    assert stage.calls.count("a") == 3 + 1 + 5


def test_budget_ends_rounds_but_not_before_there_is_an_interval() -> None:
    assert Stage(a=1.0, b=1.0).rounds(100, budget_s=20.0).count == 10
    assert Stage(a=1.0, b=1.0).rounds(100, budget_s=0.0).count == 6
    assert Stage(a=1.0, b=1.0).rounds(100, warmup=5, budget_s=20.0).count == 10


def test_pausing_is_not_timed() -> None:
    stage = Stage(a=1.0)

    def pause() -> None:
        stage.now_s += 100.0

    assert stage.rounds(3, pause=pause).samples_us["a"] == pytest.approx([1e6] * 3)


@pytest.mark.parametrize("after", [0, 4])
def test_one_that_fails_does_not_stop_the_others(after: int) -> None:
    stage = Stage(a=1.0, b=1.0)
    stage.failing("a", after, ModelError("the training step fails while it runs", why="a node broke"))
    rounds = stage.rounds(10)
    assert (len(rounds.samples_us["a"]), len(rounds.samples_us["b"])) == (after, 10)
    assert "a node broke" in rounds.failures["a"].text
    assert rounds.failures["a"].exit_code == ModelError.exit_code
    assert list(stage.steps) == ["b"]


def test_rounds_end_when_nothing_is_left() -> None:
    stage = Stage(a=1.0)
    stage.failing("a", 2, MemoryError())
    rounds = stage.rounds(10)
    assert rounds.count == 2
    assert "out of memory" in rounds.failures["a"].text


def test_memory_of_one_that_fails_is_free() -> None:
    class Session:
        pass

    session = Session()
    alive = weakref.ref(session)

    def step(kept: Session = session) -> None:
        raise ModelError("no")

    steps = {"a": step}
    del session, step
    time_rounds(steps, Schedule(rounds=3, warmup=0))
    gc.collect()
    assert alive() is None


def test_interruption_keeps_whole_rounds() -> None:
    stage = Stage(a=1.0, b=1.0)
    stage.failing("b", 7, KeyboardInterrupt())
    rounds = stage.rounds(50)
    assert (rounds.interrupted, rounds.count) == (True, 7)
    assert {len(times) for times in rounds.samples_us.values()} == {7}


def test_interruption_before_the_first_round_ends_all() -> None:
    stage = Stage(a=1.0)
    stage.failing("a", 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        stage.rounds(10, warmup=3)


def test_other_errors_are_bugs() -> None:
    stage = Stage(a=1.0)
    stage.failing("a", 0, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        stage.rounds(1)
