"""When each graph runs, rounds of one step per graph spread over several runs, and a row of results for each.

A run loads all graphs, warms them up and times some rounds. One and the same graph may be faster or
slower for as long as it stays loaded, so rounds of a single run cannot decide between graphs.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.loading import Loaded
from campo_onnx.bench.result import BenchRow, Outcome
from campo_onnx.bench.statistics import (
    MIN_SAMPLES,
    interval_over_runs,
    median_interval,
    paired_speedup,
    resolvable,
    verdict,
)
from campo_onnx.errors import CampoError
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Step

RUNS = 6
"""Number of times that graphs are loaded: the fewest medians whose range covers the true one with 95 %."""

PAUSE_S = 0.005
"""Between two steps on a CPU, see :func:`pause_between`."""

Progress = Callable[[int, int], None]
Reload = Callable[[Collection[str]], Loaded]
"""Loads the graphs of these names once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Number of rounds to time.

    No further round begins after `budget_s`, once there are `min_rounds`; None sets no limit. Untimed rounds
    go on for `spin_s` before all others: the clock of a GPU that idles is low.
    """

    rounds: int
    warmup: int
    budget_s: float | None = None
    min_rounds: int = MIN_SAMPLES
    spin_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Times of all rounds."""

    samples_us: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, Failure]
    count: int
    interrupted: bool


def pause_between(machine: Machine, seconds: float = PAUSE_S) -> Callable[[], None] | None:
    """Give the pause between two steps on a machine; None where none is needed."""
    if machine.is_gpu or machine.threads == 1:
        return None
    # Threads of the previous session keep spinning for about a millisecond, on the cores that the next
    # one needs; without a pause a step took up to 50 % longer.
    return partial(time.sleep, seconds)


def time_rounds(
    steps: MutableMapping[str, Step],
    schedule: Schedule,
    *,
    seed: int = 0,
    pause: Callable[[], None] | None = None,
    on_progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Time the rounds of one run: in each, every graph runs one step, in random order.

    Whatever changes on the machine meanwhile affects all graphs alike. Each of `steps` runs one step of a
    graph and waits for its end, and may return its own time in microseconds. A graph that fails is removed,
    which frees its memory for the others. A KeyboardInterrupt is passed on before the first timed round is
    complete.
    """
    generator = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in steps}
    failures: dict[str, Failure] = {}
    total, timed, interrupted = schedule.warmup + schedule.rounds, 0, False
    began = clock()
    try:
        while steps and clock() - began < schedule.spin_s:
            failures |= _round(steps, generator, pause, clock)[1]
        for done in range(total):
            if done == schedule.warmup:
                began = clock()
            if not steps or _is_over(done - schedule.warmup, clock() - began, schedule):
                break
            times_us, failed = _round(steps, generator, pause, clock)
            failures |= failed
            if done >= schedule.warmup and times_us:
                for name, time_us in times_us.items():
                    samples[name].append(time_us)
                timed += 1
            if on_progress is not None:
                on_progress(done + 1, total)
    except KeyboardInterrupt:
        if not timed:
            raise
        interrupted = True
    return Rounds(
        samples_us={name: tuple(times) for name, times in samples.items()},
        failures=failures,
        count=timed,
        interrupted=interrupted,
    )


def _round(
    steps: MutableMapping[str, Step],
    generator: np.random.Generator,
    pause: Callable[[], None] | None,
    clock: Callable[[], float],
) -> tuple[dict[str, float], dict[str, Failure]]:
    """Run one step of every graph; returns microseconds and failures."""
    times_us: dict[str, float] = {}
    failures: dict[str, Failure] = {}
    names = list(steps)
    for name in (names[i] for i in generator.permutation(len(names))):
        if pause is not None:
            pause()
        step = steps[name]
        try:
            began = clock()
            own_us = step()
            times_us[name] = (clock() - began) * 1e6 if own_us is None else own_us
        except (CampoError, MemoryError) as error:
            failures[name] = failure_of(error)
            del steps[name], step
    return times_us, failures


def _is_over(timed: int, elapsed_s: float, schedule: Schedule) -> bool:
    return schedule.budget_s is not None and timed >= schedule.min_rounds and elapsed_s >= schedule.budget_s


def rounds_per_run(rounds: int) -> tuple[int, ...]:
    """Distribute rounds evenly over the runs.

    >>> rounds_per_run(50)
    (9, 9, 8, 8, 8, 8)
    """
    runs = min(RUNS, rounds)
    return tuple(rounds // runs + (number < rounds % runs) for number in range(runs))


def total_rounds(schedule: Schedule) -> int:
    """Rounds of all runs, warm-up included."""
    return schedule.rounds + schedule.warmup * len(rounds_per_run(schedule.rounds))


def time_runs(
    loaded: Loaded,
    reload: Reload,
    time_one: Callable[..., Rounds],
    schedule: Schedule,
    *,
    seed: int,
    on_progress: Progress,
) -> tuple[tuple[Rounds, ...], Loaded]:
    """Time all rounds, loading the graphs anew between runs.

    A KeyboardInterrupt is passed on before the first timed round is complete; later, what was timed is
    returned. `reload` loads graphs once more, after the old sessions were dropped; those that failed stay
    out. The schedule counts rounds of all runs together, the warm-up of each run, and the time of all runs
    together. Gives the rounds of each run, and the graphs as they are loaded at the end.
    """
    runs: list[Rounds] = []
    total, shares = total_rounds(schedule), rounds_per_run(schedule.rounds)
    budget_s = None if schedule.budget_s is None else schedule.budget_s / len(shares)
    for number, share in enumerate(shares):
        before = sum(shares[:number]) + number * schedule.warmup
        try:
            if number:
                remaining = tuple(loaded.steps)
                loaded.steps.clear()
                fresh = reload(remaining)
                loaded = replace(loaded, steps=fresh.steps, failures={**loaded.failures, **fresh.failures})
            runs.append(
                time_one(
                    loaded.steps,
                    replace(schedule, rounds=share, budget_s=budget_s, min_rounds=1),
                    seed=seed + number,
                    on_progress=lambda done, _, before=before: on_progress(before + done, total),
                )
            )
        except KeyboardInterrupt:
            if not runs:
                raise
            runs[-1] = replace(runs[-1], interrupted=True)
        if runs[-1].interrupted or not loaded.steps:
            break
    return tuple(runs), loaded


def merged(runs: Sequence[Rounds]) -> Rounds:
    """Concatenate the rounds of several runs; at least one run."""
    names = runs[0].samples_us
    return Rounds(
        samples_us={name: tuple(t for run in runs for t in run.samples_us.get(name, ())) for name in names},
        failures={name: failure for run in runs for name, failure in run.failures.items()},
        count=sum(run.count for run in runs),
        interrupted=runs[-1].interrupted,
    )


def rows_of(
    names: Sequence[str],
    runs: Sequence[Rounds],
    *,
    failures: Mapping[str, Failure],
    tolerance: float,
    batch: int | None,
) -> Iterator[BenchRow]:
    """Compare steps that ran in the same rounds."""
    rounds, per_run = merged(runs), [run.count for run in runs]
    failures = {**failures, **rounds.failures}
    first = names[0]
    baseline_us = () if first in failures else rounds.samples_us[first]
    if baseline_us:
        tolerance = resolvable(tolerance, median_interval(baseline_us).median)
    for name in names:
        samples_us = rounds.samples_us.get(name, ())
        step_us = interval_over_runs(samples_us, per_run) if samples_us else None
        failure = failures.get(name, Failure(text="", exit_code=0))
        is_compared = name != first and not failure.text
        speedup = paired_speedup(baseline_us, samples_us, per_run) if is_compared else None
        if failure.text:
            outcome = Outcome.FAILED
        elif name == first:
            outcome = Outcome.BASELINE
        else:
            is_enough = speedup is not None and sum(map(bool, per_run)) >= RUNS
            outcome = verdict(speedup, tolerance) if speedup and is_enough else Outcome.NOT_COMPARED
        yield BenchRow(
            name=name,
            step_us=step_us,
            speedup=speedup,
            verdict=outcome,
            samples_per_s=batch / step_us.median * 1e6 if batch and step_us else None,
            failure=failure.text,
            failure_code=failure.exit_code,
        )
