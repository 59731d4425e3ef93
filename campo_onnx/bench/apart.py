"""Graphs that do not fit on the device together: each is loaded by itself, in every run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from campo_onnx.bench.failure import Failure
from campo_onnx.bench.loading import Loaded
from campo_onnx.bench.rounds import Progress, Rounds, Schedule, rounds_per_run, total_rounds

NOTE = (
    "the graphs do not fit on the device together: in each run they were loaded one after the other, so "
    "that their rounds are further apart in time"
)


def time_runs_apart(
    names: Sequence[str],
    load_one: Callable[[str], Loaded],
    time_one: Callable[..., Rounds],
    schedule: Schedule,
    *,
    seed: int,
    on_progress: Progress,
) -> tuple[tuple[Rounds, ...], Loaded]:
    """Time all rounds, with one graph loaded at a time; in each run, in random order.

    A KeyboardInterrupt is passed on before the first run is complete; later, what was timed is returned.
    `load_one` loads one of them; what it returned before has been dropped. The schedule counts rounds of all
    runs together, the warm-up of each run, and the time of all runs and graphs together. In a run, all graphs
    have the same number of rounds. None of them is loaded at the end.
    """
    generator = np.random.default_rng(seed)
    shares = rounds_per_run(schedule.rounds)
    budget_s = None if schedule.budget_s is None else schedule.budget_s / len(shares) / max(1, len(names))
    whole = Loaded(notes=(NOTE,))
    runs: list[Rounds] = []
    for number, share in enumerate(shares):
        part = replace(schedule, rounds=share, budget_s=budget_s, min_rounds=1)
        timed: dict[str, Rounds] = {}
        remaining = [name for name in names if name not in whole.failures]
        is_cut_short = False
        try:
            for name in (remaining[i] for i in generator.permutation(len(remaining))):
                loaded = load_one(name)
                whole = _with(whole, loaded)
                if name in loaded.steps:
                    timed[name] = time_one(loaded.steps, part, seed=seed + number)
                    whole = replace(whole, failures={**whole.failures, **timed[name].failures})
                    is_cut_short |= timed[name].interrupted
                loaded.steps.clear()
                if is_cut_short:
                    break
        except KeyboardInterrupt:
            is_cut_short = True
        if not is_cut_short:
            runs.append(_together(timed, names, whole.failures))
            done = sum(shares[: number + 1]) + (number + 1) * schedule.warmup
            on_progress(done, total_rounds(schedule))
        elif not runs:
            raise KeyboardInterrupt
        else:
            runs[-1] = replace(runs[-1], interrupted=True)
            break
    return tuple(runs), whole


def _with(whole: Loaded, loaded: Loaded) -> Loaded:
    return replace(
        whole,
        peak_bytes={**loaded.peak_bytes, **whole.peak_bytes},
        failures={**whole.failures, **loaded.failures},
        notes=tuple(dict.fromkeys((*whole.notes, *loaded.notes))),
    )


def _together(timed: dict[str, Rounds], names: Sequence[str], failures: Mapping[str, Failure]) -> Rounds:
    """Put the rounds of one run together; what exceeds the shortest has no partner."""
    sound = [rounds.count for name, rounds in timed.items() if name not in failures]
    count = min(sound, default=0)
    samples_us = {name: timed[name].samples_us.get(name, ()) if name in timed else () for name in names}
    return Rounds(
        samples_us={
            name: samples if name in failures else samples[:count] for name, samples in samples_us.items()
        },
        failures={name: failures[name] for name in names if name in failures},
        count=count,
        interrupted=False,
    )
