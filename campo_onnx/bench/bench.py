"""Time whole training steps of several graphs against each other."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.bench.contender import Buffers
from campo_onnx.bench.energy import BLOCKS, energy_samples
from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.lineup import Lineup, line_up
from campo_onnx.bench.memory import memory_gauge
from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.bench.rounds import Pace, Progress, Rounds, take_rounds
from campo_onnx.bench.starts import STARTS, rounds_in_all, take_starts, together
from campo_onnx.bench.statistics import (
    RESOLUTION_US,
    interval_over_starts,
    median_interval,
    paired_speedup,
    resolvable,
    verdict,
)
from campo_onnx.bench.subject import Subject, batch_size, check_comparable
from campo_onnx.errors import CampoError, DeviceUnavailableError, UsageError
from campo_onnx.runtime.nvml import GpuMeter, gpu_meter
from campo_onnx.runtime.providers import Machine
from campo_onnx.runtime.sessions import RUNTIME_ERRORS

TOLERANCE = 0.01
"""Speed-ups nearer to 1 than this are no difference, unless asked otherwise."""

_SETTLE_S = 0.005
_LOW = frozenset([TensorProto.FLOAT16, TensorProto.BFLOAT16])


def bench(
    subjects: Sequence[Subject],
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
    on_progress: Progress | None = None,
) -> BenchResult:
    """Time training steps of graphs in turns, on the same values.

    A graph that fails becomes a row that says why, and the others go on. Ctrl-C after the first
    round ends the benchmark; what was measured until then is returned.

    Parameters
    ----------
    subjects
        The graphs, with equal inputs and outputs; the first is what the others are held against.
    machine
        Where to run.
    feeds
        A value for every input; made up from `seed` where None.
    steps
        Rounds that count; in each every graph takes one step.
    warmup
        Rounds before them. At least one is taken: ONNX Runtime reserves its memory in it.
    budget_s
        Time over all rounds, after which only one round of each start is still taken. None takes all
        `steps`.
    cuda_graph
        Whether CUDA captures each step once and replays it. Every node must then run on the GPU.
    seed
        Of made-up values and of the order within rounds.
    tolerance
        Speed-ups whose interval comes within this of 1 are no difference.
    batch
        Samples per step; None reads it off the graph where that can tell.
    on_progress
        Called with how much is done, and how much there is in all.

    Raises
    ------
    UsageError
        If the graphs differ in their interface, values do not fit, or an argument makes no sense.
    DeviceUnavailableError
        If not even the inputs and outputs fit on the device.
    KeyboardInterrupt
        If the user ends it before the first round is complete.
    """
    _check_arguments(machine, steps=steps, tolerance=tolerance, batch=batch, cuda_graph=cuda_graph)
    check_comparable(subjects)
    buffers = _buffers(subjects[0], feeds, machine, seed)
    with _meter(machine) as gpu:
        gauge = memory_gauge(machine, gpu)
        open_all = partial(line_up, buffers=buffers, machine=machine, gauge=gauge, cuda_graph=cuda_graph)
        lineup = open_all(subjects)
        pace = Pace(steps=steps, warmup=max(0, warmup - 1), budget_s=budget_s)
        blocks = 0 if gpu.problem else BLOCKS * len(lineup.steps)
        advance = _Advance(on_progress, rounds_in_all(pace), blocks)
        starts, lineup = take_starts(
            lineup,
            lambda left: open_all([subject for subject in subjects if subject.name in left]),
            partial(take_rounds, settle=_settling(machine)),
            pace,
            seed=seed,
            on_progress=advance.round_done,
        )
        rounds = together(starts)
        energy = _energy(lineup, rounds, gpu, seed, advance.block_done)
    batch = batch or batch_size(subjects[0])
    return BenchResult(
        machine=machine,
        rows=_rows(subjects, lineup, rounds, [start.taken for start in starts], energy, tolerance, batch),
        steps=rounds.taken,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        samples_us=rounds.samples_us,
        starts=tuple(start.taken for start in starts),
        tolerance=tolerance,
        batch=batch,
        interrupted=rounds.interrupted or energy.interrupted,
        energy_from=energy.source,
        memory_from=gauge.source,
        notes=(*lineup.remarks, *_notes(subjects, machine, rounds, tolerance)),
    )


@dataclass(frozen=True, slots=True)
class _Advance:
    """One count over rounds and blocks of energy."""

    tell: Progress | None
    rounds: int
    blocks: int

    def round_done(self, done: int, _: int) -> None:
        if self.tell is not None:
            self.tell(done, self.rounds + self.blocks)

    def block_done(self, done: int) -> None:
        if self.tell is not None:
            self.tell(self.rounds + done, self.rounds + self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Energy:
    source: str
    samples_j: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    interrupted: bool = False


def _check_arguments(
    machine: Machine, *, steps: int, tolerance: float, batch: int | None, cuda_graph: bool
) -> None:
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be timed", remedy="Take at least 1, better 6 or more.")
    if not 0 <= tolerance < 1:
        raise UsageError(f"the tolerance is {tolerance}", remedy="Give a share, 0.01 for 1 %.")
    if batch is not None and batch < 1:
        raise UsageError(f"the batch is {batch}", remedy="Give the number of samples in a step.")
    if cuda_graph and machine.provider != "cuda":
        raise UsageError("a CUDA graph cannot be captured on a CPU", remedy="Leave --cuda-graph off.")


def _buffers(
    subject: Subject, feeds: Mapping[str, NDArray[Any]] | None, machine: Machine, seed: int
) -> Buffers:
    try:
        return Buffers(subject.imported.view, feeds, machine, seed=seed)
    except (MemoryError, *RUNTIME_ERRORS) as error:
        raise DeviceUnavailableError(
            "the inputs and outputs cannot be put on the device", why=failure_of(error).text
        ) from None


def _meter(machine: Machine) -> AbstractContextManager[GpuMeter]:
    if machine.provider == "cuda":
        return gpu_meter()
    return nullcontext(GpuMeter(problem="only NVIDIA GPUs count it"))


def _settling(machine: Machine) -> Callable[[], None] | None:
    """What to do between two steps."""
    if machine.provider != "cpu" or machine.threads == 1:
        return None
    # The threads of the session that ran last go on spinning for about a millisecond, on the cores
    # that the next one needs; without a pause a step took up to half as long again.
    return partial(time.sleep, _SETTLE_S)


def _energy(
    lineup: Lineup, rounds: Rounds, gpu: GpuMeter, seed: int, on_block: Callable[[int], None]
) -> _Energy:
    if gpu.problem:
        return _Energy(source=f"not measured: {gpu.problem}")
    if rounds.interrupted or not lineup.steps:
        return _Energy(source="not measured: interrupted" if rounds.interrupted else "not measured")
    try:
        samples_j = energy_samples(lineup.steps, gpu.energy_j, seed=seed, on_block=on_block)
    except KeyboardInterrupt:
        return _Energy(source="not measured: interrupted", interrupted=True)
    except CampoError as error:
        return _Energy(source=f"not measured: {failure_of(error).text}")
    if not samples_j:
        return _Energy(source="not measured: this GPU does not count it")
    return _Energy(source=f"the GPU's own counter (NVML), {BLOCKS} blocks", samples_j=samples_j)


def _rows(
    subjects: Sequence[Subject],
    lineup: Lineup,
    rounds: Rounds,
    starts: Sequence[int],
    energy: _Energy,
    tolerance: float,
    batch: int | None,
) -> tuple[BenchRow, ...]:
    failures = {**lineup.failures, **rounds.failures}
    first = subjects[0].name
    baseline_us = () if first in failures else rounds.samples_us[first]
    if baseline_us:
        tolerance = resolvable(tolerance, median_interval(baseline_us).median)
    rows = []
    for name in (subject.name for subject in subjects):
        samples_us = rounds.samples_us.get(name, ())
        step_us = interval_over_starts(samples_us, starts) if samples_us else None
        failure = failures.get(name, Failure(text="", exit_code=0))
        is_compared = name != first and not failure.text
        speedup = paired_speedup(baseline_us, samples_us, starts) if is_compared else None
        if failure.text:
            outcome = Outcome.FAILED
        elif name == first:
            outcome = Outcome.BASELINE
        else:
            is_enough = speedup is not None and sum(map(bool, starts)) >= STARTS
            outcome = verdict(speedup, tolerance) if speedup and is_enough else Outcome.NOT_COMPARED
        joules = energy.samples_j.get(name, ())
        rows.append(
            BenchRow(
                name=name,
                step_us=step_us,
                speedup=speedup,
                verdict=outcome,
                samples_per_s=batch / step_us.median * 1e6 if batch and step_us else None,
                energy_j=median_interval(joules) if joules else None,
                peak_bytes=lineup.peak_bytes.get(name),
                failure=failure.text,
                failure_code=failure.exit_code,
            )
        )
    return tuple(rows)


def _notes(subjects: Sequence[Subject], machine: Machine, rounds: Rounds, tolerance: float) -> Iterator[str]:
    """What must be known to read the figures."""
    first_us = rounds.samples_us.get(subjects[0].name, ())
    if first_us and len(subjects) > 1:
        told_apart = resolvable(tolerance, median_interval(first_us).median)
        if told_apart > tolerance:
            yield (
                f"steps this short cannot be told apart below {RESOLUTION_US:g} us, which is {told_apart:.1%}"
            )
    low = [s.name for s in subjects if any(t.dtype in _LOW for t in s.imported.view.tensors.values())]
    if machine.provider == "cpu" and low:
        yield (
            f"{', '.join(low)}: ONNX Runtime's CPU provider computes FP16 in FP32, with casts around; this "
            "says nothing about a GPU"
        )
