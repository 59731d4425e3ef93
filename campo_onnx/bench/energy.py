"""Energy per step, over blocks of steps long enough for a counter that moves rarely."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from campo_onnx.runtime.timing import Step

BLOCKS = 6
"""Of each graph: as many as a 95 % interval of a median needs."""

BLOCK_S = 1.0
"""Length of a block, at least; the counter moves every 20 to 100 ms."""

_PATIENCE_S = 5.0
_LEAST_READINGS = 4

Counter = Callable[[], float | None]
Clock = Callable[[], float]


def energy_samples(
    steps: Mapping[str, Step],
    counter_j: Counter,
    *,
    seed: int = 0,
    on_block: Callable[[int], None] | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Measure joules per step, the graphs in turns.

    What counts is the whole device, its idle power included.

    Parameters
    ----------
    steps
        What takes one step and waits for its end, by graph.
    counter_j
        Joules drawn so far; None where nothing counts.
    seed
        Of the order within each turn.
    on_block
        Called after every block with how many are done.
    clock
        Seconds.

    Returns
    -------
    dict
        One value a block by graph; empty if nothing counts, or the counter stands still.
    """
    generator = np.random.default_rng(seed)
    names = list(steps)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(BLOCKS):
        for name in (names[i] for i in generator.permutation(len(names))):
            step_j = _block(steps[name], counter_j, clock)
            if step_j is None:
                return {}
            samples[name].append(step_j)
            if on_block is not None:
                on_block(sum(map(len, samples.values())))
    return {name: tuple(values) for name, values in samples.items()}


def _block(step: Step, counter_j: Counter, clock: Clock) -> float | None:
    """Joules per step between two movements of the counter that lie a block apart."""
    start = _run_to_movement(step, counter_j, clock, 0.0)
    end = _run_to_movement(step, counter_j, clock, BLOCK_S) if start is not None else None
    if start is None or end is None:
        return None
    return (end[1] - start[1]) / end[0]


def _run_to_movement(
    step: Step, counter_j: Counter, clock: Clock, least_s: float
) -> tuple[int, float] | None:
    """Take steps for some time, then until the counter moves; returns how many, and what it says."""
    began, taken = clock(), 0
    while clock() - began < least_s:
        step()
        taken += 1
    readings = [counter_j()]
    while readings[-1] is not None and readings[-1] == readings[0]:
        # Some steps are longer than anyone's patience.
        if len(readings) > _LEAST_READINGS and clock() - began > least_s + _PATIENCE_S:
            return None
        step()
        taken += 1
        readings.append(counter_j())
    return None if readings[-1] is None else (taken, readings[-1])
