"""Rounds: every graph takes one step in each, in an order drawn anew."""

import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np

from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.statistics import LEAST_SAMPLES
from campo_onnx.errors import CampoError
from campo_onnx.runtime.timing import Step

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many rounds to take.

    Parameters
    ----------
    steps
        Rounds that count, at most.
    warmup
        Rounds before them that do not.
    budget_s
        Time after which no further round is begun, once there are `least`. None takes all.
    least
        Rounds that are taken however long they are.
    """

    steps: int
    warmup: int
    budget_s: float | None = None
    least: int = LEAST_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What was timed.

    Parameters
    ----------
    samples_us
        By graph, in the order of rounds.
    failures
        Of graphs that failed on the way.
    taken
        Rounds that count.
    interrupted
        Whether the user ended it early.
    """

    samples_us: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, Failure]
    taken: int
    interrupted: bool


def take_rounds(
    steps: MutableMapping[str, Step],
    pace: Pace,
    *,
    seed: int = 0,
    settle: Callable[[], None] | None = None,
    on_progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Time steps in turns, so that what changes on the machine hits all alike.

    Parameters
    ----------
    steps
        What takes one step and waits for its end, by graph. A graph that fails is taken out, which
        frees its memory for the others.
    pace
        How many rounds.
    seed
        Of the order within each round.
    settle
        Called before every step.
    on_progress
        Called after every round with how many are done, warm-up included, and how many there are.
    clock
        Seconds.

    Raises
    ------
    KeyboardInterrupt
        If the user ends it before the first round is complete.
    """
    generator = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in steps}
    failures: dict[str, Failure] = {}
    total, taken, interrupted = pace.warmup + pace.steps, 0, False
    began = clock()
    try:
        for done in range(total):
            if done == pace.warmup:
                began = clock()
            if not steps or _is_over(done - pace.warmup, clock() - began, pace):
                break
            times_us, failed = _round(steps, generator, settle, clock)
            failures |= failed
            if done >= pace.warmup and times_us:
                for name, time_us in times_us.items():
                    samples[name].append(time_us)
                taken += 1
            if on_progress is not None:
                on_progress(done + 1, total)
    except KeyboardInterrupt:
        if not taken:
            raise
        interrupted = True
    return Rounds(
        samples_us={name: tuple(times) for name, times in samples.items()},
        failures=failures,
        taken=taken,
        interrupted=interrupted,
    )


def _round(
    steps: MutableMapping[str, Step],
    generator: np.random.Generator,
    settle: Callable[[], None] | None,
    clock: Callable[[], float],
) -> tuple[dict[str, float], dict[str, Failure]]:
    """Let every graph take one step; returns microseconds, and failures."""
    times_us: dict[str, float] = {}
    failures: dict[str, Failure] = {}
    names = list(steps)
    for name in (names[i] for i in generator.permutation(len(names))):
        if settle is not None:
            settle()
        step = steps[name]
        try:
            began = clock()
            step()
            times_us[name] = (clock() - began) * 1e6
        except (CampoError, MemoryError) as error:
            failures[name] = failure_of(error)
            del steps[name], step
    return times_us, failures


def _is_over(taken: int, elapsed_s: float, pace: Pace) -> bool:
    return pace.budget_s is not None and taken >= pace.least and elapsed_s >= pace.budget_s
