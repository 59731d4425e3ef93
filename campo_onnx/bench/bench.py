"""Time whole training steps of several graphs against each other."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from numpy.typing import NDArray

from campo_onnx.bench.apart import time_runs_apart
from campo_onnx.bench.failure import failure_of
from campo_onnx.bench.graphs import Graph, batch_size, check_same_interface
from campo_onnx.bench.loading import FIRST_STEPS, Buffers, Loaded, load_graphs
from campo_onnx.bench.meters import BLOCKS, energy_samples, memory_meter
from campo_onnx.bench.result import BenchResult, BenchRow
from campo_onnx.bench.rounds import (
    PAUSE_S,
    RUNS,
    Progress,
    Rounds,
    Schedule,
    merged,
    pause_between,
    rows_of,
    time_rounds,
    time_runs,
    total_rounds,
)
from campo_onnx.bench.statistics import RESOLUTION_US, median_interval, resolvable
from campo_onnx.errors import CampoError, DeviceUnavailableError, UsageError
from campo_onnx.optimize.traffic import traffic
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.nvml import GpuMeter, gpu_meter
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.runtime.timing import GPU_SPIN_S

TOLERANCE = 0.01
"""Speed-ups within this of 1 count as no difference, unless asked otherwise."""


def bench(
    graphs: Sequence[Graph],
    machine: Machine,
    *,
    feeds: Mapping[str, NDArray[Any]] | None = None,
    steps: int = 50,
    warmup: int = 3,
    budget_s: float | None = None,
    cuda_graph: bool = False,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    batch: int | None = None,
    energy: bool = True,
    on_progress: Progress | None = None,
    on_loaded: Callable[[float], None] | None = None,
) -> BenchResult:
    """Time training steps of graphs in alternation, on the same values.

    A graph that fails becomes a row with the reason, and the others go on. Graphs that do not fit on the
    device together are loaded one after the other. Ctrl-C after the first round
    ends the benchmark; what was measured until then is returned.

    Parameters
    ----------
    graphs
        Graphs with equal inputs and outputs; the others are compared with the first.
    machine
        Where to run.
    feeds
        A value for every input; generated from `seed` where None.
    steps
        Timed rounds; in each, every graph runs one step.
    warmup
        Rounds before them, in each run. At least two are taken, in which ONNX Runtime reserves its
        memory, and on a GPU as many as raise its clock.
    budget_s
        Time for all rounds, after which each remaining run times one round only. None times all `steps`.
    cuda_graph
        Whether CUDA captures each step once and replays it. Every node must then run on the GPU.
    seed
        Seed of generated values and of the order within rounds.
    tolerance
        Speed-ups whose interval comes within this of 1 count as no difference.
    batch
        Samples per step; None infers it from the graph where possible.
    energy
        Whether to measure it, where the GPU has a counter: several seconds a graph.
    on_progress
        Called with the work done and the total.
    on_loaded
        Called once, when the graphs are loaded, with about how many seconds all rounds will take.

    Raises
    ------
    UsageError
        If the graphs differ in their interface, values do not fit, or an argument is out of range.
    DeviceUnavailableError
        If not even the inputs and outputs fit on the device.
    KeyboardInterrupt
        If the user ends it before the first round is complete.
    """
    _check_arguments(machine, steps=steps, tolerance=tolerance, batch=batch, cuda_graph=cuda_graph)
    check_same_interface(graphs)
    buffers = _buffers(graphs[0], feeds, machine, seed)
    with _meter(machine) as gpu:
        memory = memory_meter(machine, gpu)
        load = partial(load_graphs, buffers=buffers, machine=machine, memory=memory, cuda_graph=cuda_graph)
        began = time.monotonic()
        loaded = load(graphs)
        load_s = time.monotonic() - began
        is_apart = len(graphs) > 1 and any(failure.is_memory for failure in loaded.failures.values())
        if is_apart:
            loaded.steps.clear()  # which frees their memory
        schedule = Schedule(
            rounds=steps,
            warmup=max(0, warmup - FIRST_STEPS),
            budget_s=budget_s,
            spin_s=GPU_SPIN_S if machine.is_gpu else 0.0,
        )
        blocks = 0 if gpu.problem or not energy else BLOCKS * len(loaded.steps)
        progress = _Progress(on_progress, total_rounds(schedule), blocks, gpu.sm_clock_mhz)
        if on_loaded is not None:
            on_loaded(_seconds(loaded, schedule, load_s=load_s, pauses=pause_between(machine) is not None))
        runs, loaded = _timed(
            graphs,
            None if is_apart else loaded,
            load,
            schedule,
            pause=pause_between(machine),
            seed=seed,
            on_progress=progress.round_done,
        )
        rounds = merged(runs)
        if energy:
            drawn = _energy(loaded, rounds, gpu, seed, progress.block_done)
        else:
            drawn = _Energy(source="not measured: switched off")
    batch = batch or batch_size(graphs[0])
    return BenchResult(
        machine=machine,
        rows=tuple(_rows(graphs, loaded, runs, drawn, tolerance, batch)),
        steps=rounds.count,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        samples_us=rounds.samples_us,
        rounds_per_run=tuple(run.count for run in runs),
        tolerance=tolerance,
        batch=batch,
        interrupted=rounds.interrupted or drawn.interrupted,
        energy_from=drawn.source,
        memory_from=memory.source,
        sm_clock_mhz=tuple(progress.clocks_mhz),
        notes=(*loaded.notes, *_notes(graphs, machine, rounds, tolerance)),
    )


def _timed(
    graphs: Sequence[Graph],
    loaded: Loaded | None,
    load: Callable[[Sequence[Graph]], Loaded],
    schedule: Schedule,
    *,
    pause: Callable[[], None] | None,
    seed: int,
    on_progress: Progress,
) -> tuple[tuple[Rounds, ...], Loaded]:
    """Time all rounds of graphs that are loaded; without, each run loads one after the other."""
    time_one, by_name = partial(time_rounds, pause=pause), {graph.name: graph for graph in graphs}
    if loaded is None:
        return time_runs_apart(
            [*by_name],
            lambda name: load([by_name[name]]),
            time_one,
            schedule,
            seed=seed,
            on_progress=on_progress,
        )
    return time_runs(
        loaded,
        lambda names: load([graph for name, graph in by_name.items() if name in names]),
        time_one,
        schedule,
        seed=seed,
        on_progress=on_progress,
    )


@dataclass(frozen=True, slots=True)
class _Progress:
    """One count over rounds and energy blocks; and the clock after each round."""

    report: Progress | None
    rounds: int
    blocks: int
    clock_mhz: Callable[[], int | None]
    clocks_mhz: list[int] = field(default_factory=list)

    def round_done(self, done: int, _: int) -> None:
        if (clock_mhz := self.clock_mhz()) is not None:
            self.clocks_mhz.append(clock_mhz)
        if self.report is not None:
            self.report(done, self.rounds + self.blocks)

    def block_done(self, done: int) -> None:
        if self.report is not None:
            self.report(self.rounds + done, self.rounds + self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Energy:
    source: str
    samples_j: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    interrupted: bool = False


def _check_arguments(
    machine: Machine, *, steps: int, tolerance: float, batch: int | None, cuda_graph: bool
) -> None:
    if steps < 1:
        raise UsageError(f"steps is {steps}", remedy="Give at least 1; an interval needs 6 or more.")
    if not 0 <= tolerance < 1:
        raise UsageError(
            f"the tolerance is {tolerance}", remedy="Give a share from 0 to 1, such as 0.01 for 1 %."
        )
    if batch is not None and batch < 1:
        raise UsageError(f"the batch is {batch}", remedy="Give the number of samples in a step.")
    if cuda_graph and not machine.is_gpu:
        raise UsageError("a CUDA graph cannot be captured on a CPU", remedy="Leave --cuda-graph off.")


def _buffers(graph: Graph, feeds: Mapping[str, NDArray[Any]] | None, machine: Machine, seed: int) -> Buffers:
    try:
        return Buffers(graph.imported.view, feeds, machine, seed=seed)
    except MemoryError as error:
        raise DeviceUnavailableError(
            "the inputs and outputs cannot be copied to the device", why=failure_of(error).text
        ) from None


def _meter(machine: Machine) -> AbstractContextManager[GpuMeter]:
    if machine.is_gpu:
        return gpu_meter()
    return nullcontext(GpuMeter(problem="only NVIDIA GPUs report it"))


def _seconds(loaded: Loaded, schedule: Schedule, *, load_s: float, pauses: bool) -> float:
    """Guess how long all rounds will take, with pauses between steps, and loading anew for each run."""
    round_s = sum(step_s + pauses * PAUSE_S for step_s in loaded.step_s.values())
    rounds_s = round_s * total_rounds(schedule)
    if schedule.budget_s is not None:
        rounds_s = min(rounds_s, schedule.budget_s)
    return rounds_s + (min(RUNS, schedule.rounds) - 1) * load_s


def _energy(
    loaded: Loaded, rounds: Rounds, gpu: GpuMeter, seed: int, on_block: Callable[[int], None]
) -> _Energy:
    if gpu.problem:
        return _Energy(source=f"not measured: {gpu.problem}")
    if rounds.interrupted or not loaded.steps:
        return _Energy(source="not measured: interrupted" if rounds.interrupted else "not measured")
    try:
        samples_j = energy_samples(loaded.steps, gpu.energy_j, seed=seed, on_block=on_block)
    except KeyboardInterrupt:
        return _Energy(source="not measured: interrupted", interrupted=True)
    except CampoError as error:
        return _Energy(source=f"not measured: {failure_of(error).text}")
    if not samples_j:
        return _Energy(source="not measured: this GPU does not report it")
    return _Energy(source=f"the GPU's energy counter (NVML), {BLOCKS} blocks", samples_j=samples_j)


def _rows(
    graphs: Sequence[Graph],
    loaded: Loaded,
    runs: Sequence[Rounds],
    energy: _Energy,
    tolerance: float,
    batch: int | None,
) -> Iterator[BenchRow]:
    """Add what is measured or counted of graphs alone."""
    names = [graph.name for graph in graphs]
    rows = rows_of(names, runs, failures=loaded.failures, tolerance=tolerance, batch=batch)
    for graph, row in zip(graphs, rows, strict=True):
        counted = traffic(graph.imported.view)
        joules = energy.samples_j.get(graph.name, ())
        yield replace(
            row,
            energy_j=median_interval(joules) if joules else None,
            peak_bytes=loaded.peak_bytes.get(graph.name),
            launches=counted.total.launches,
            moved_bytes=counted.total.moved_bytes,
            alive_bytes=counted.peak_bytes,
        )


def _notes(graphs: Sequence[Graph], machine: Machine, rounds: Rounds, tolerance: float) -> Iterator[str]:
    """Notes for reading the figures."""
    first_us = rounds.samples_us.get(graphs[0].name, ())
    if first_us and len(graphs) > 1:
        smallest = resolvable(tolerance, median_interval(first_us).median)
        if smallest > tolerance:
            yield f"differences below {RESOLUTION_US:g} us ({smallest:.1%} of a step) cannot be resolved"
    low = [g.name for g in graphs if g.imported.view.is_mixed]
    if not machine.is_gpu and not runtime_called(machine.runtime).capabilities.has_low_cpu_kernels and low:
        yield (
            f"{', '.join(low)}: ONNX Runtime's CPU provider computes FP16 in FP32 between casts; this "
            "says nothing about a GPU"
        )
