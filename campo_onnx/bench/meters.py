"""Measurements besides time: energy, memory, and use of the tensor cores."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from campo_onnx.bench.result import BenchResult
from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.nvml import GpuMeter
from campo_onnx.runtime.onnxruntime.ncu import TENSOR_PIPE, count
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.runtime.timing import Step

BLOCKS = 6
"""Energy samples per graph: the fewest that give a 95 % interval of a median."""

BLOCK_S = 1.0
"""Length of one energy sample, at least; the counter is updated every 20 to 100 ms."""

_TIMEOUT_S = 5.0
_MIN_READINGS = 4

_MIB = 1 << 20
_STATUS = Path("/proc/self/status")
_ANONYMOUS = "RssAnon:"  # resident memory not backed by a file: leaves out the code of libraries
_MIN_CPU_BYTES = 32 * _MIB  # smaller growth depends on how much free memory the heap had

EnergyCounter = Callable[[], float | None]
Clock = Callable[[], float]


def energy_samples(
    steps: Mapping[str, Step],
    counter_j: EnergyCounter,
    *,
    seed: int = 0,
    on_block: Callable[[int], None] | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Measure joules per step of the whole device, idle power included, the graphs in turn.

    There is one value per block, by graph; none if there is no counter or it does not advance. `counter_j`
    tells the energy drawn so far, in joules; it is None where there is no counter. `on_block` is called after
    every block with the number of blocks done.
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


def _block(step: Step, counter_j: EnergyCounter, clock: Clock) -> float | None:
    """Joules per step between two updates of the counter at least one block apart."""
    start = _run_until_update(step, counter_j, clock, 0.0)
    end = _run_until_update(step, counter_j, clock, BLOCK_S) if start is not None else None
    if start is None or end is None:
        return None
    return (end[1] - start[1]) / end[0]


def _run_until_update(
    step: Step, counter_j: EnergyCounter, clock: Clock, min_s: float
) -> tuple[int, float] | None:
    """Run steps for some time, then until the counter changes; returns their number and its value."""
    began, steps = clock(), 0
    while clock() - began < min_s:
        step()
        steps += 1
    readings = [counter_j()]
    while readings[-1] is not None and readings[-1] == readings[0]:
        # A single step may take longer than the timeout.
        if len(readings) > _MIN_READINGS and clock() - began > min_s + _TIMEOUT_S:
            return None
        step()
        steps += 1
        readings.append(counter_j())
    return None if readings[-1] is None else (steps, readings[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeter:
    """Reads how much memory this process holds on the device that runs the graphs."""

    read: Callable[[], int | None]  # bytes held now; None if unknown
    min_bytes: int
    source: str

    def growth(self, before_bytes: int | None) -> int | None:
        """Bytes held more than before; None if unknown or below the threshold.

        ONNX Runtime keeps its memory between steps, so after a step this is the step's peak.
        """
        now = self.read()
        if now is None or before_bytes is None or now - before_bytes < self.min_bytes:
            return None
        return now - before_bytes


def memory_meter(machine: Machine, gpu: GpuMeter) -> MemoryMeter:
    """Choose what to read on a machine."""
    if machine.is_gpu:
        missing = gpu.problem or ("" if gpu.process_bytes() is not None else "the driver does not report it")
        source = f"not measured: {missing}" if missing else "growth of this process' GPU memory (NVML)"
        return MemoryMeter(read=gpu.process_bytes, min_bytes=0, source=source)
    if _resident_bytes() is None:
        return MemoryMeter(read=_resident_bytes, min_bytes=0, source="not measured: only Linux reports it")
    source = f"growth of this process' resident memory, where it is {_MIN_CPU_BYTES // _MIB} MiB or more"
    return MemoryMeter(read=_resident_bytes, min_bytes=_MIN_CPU_BYTES, source=source)


def _resident_bytes() -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.split()[1] for line in lines if line.startswith(_ANONYMOUS))
    kib = next(fields, None)
    return None if kib is None else int(kib) * 1024


def with_tensor_pipe(
    result: BenchResult, files: Sequence[Path], dims: Mapping[str, int] | None = None
) -> BenchResult:
    """Add the share of each step in which the tensor cores were busy.

    Reads a hardware counter over one more step of each graph that ran. Where counters cannot be read,
    a note says why, and the result is complete otherwise.
    """
    if not result.machine.is_gpu:
        raise UsageError("a CPU has no tensor cores", remedy="Leave --tensor-cores out.")
    if not runtime_called(result.machine.runtime).capabilities.runs_each_node:
        raise UsageError(
            f"the use of tensor cores is not measured in {result.machine.runtime}",
            why="the step whose counters are read is run by ONNX Runtime",
            remedy="Leave --tensor-cores out.",
        )
    ran = [(row.name, file) for row, file in zip(result.rows, files, strict=True) if not row.failure]
    try:
        counted = count([file for _, file in ran], metrics=[TENSOR_PIPE], dims=dims)
    except DeviceUnavailableError as error:
        return replace(result, notes=(*result.notes, f"tensor cores not measured: {error}"))
    percents = {
        name: share[TENSOR_PIPE]
        for (name, _), share in zip(ran, counted, strict=True)
        if share is not None and TENSOR_PIPE in share
    }
    rows = tuple(
        replace(row, tensor_pipe_share=percents[row.name] / 100) if row.name in percents else row
        for row in result.rows
    )
    return replace(result, rows=rows)
