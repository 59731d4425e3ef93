"""Sides of one network in turns, some steps each, in an order that rotates."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.measured.gradients import refuse_unexplained
from benchmarks.measured.sides import IN_FP32, MODULE, THREADS, Worker
from benchmarks.pages import provenance
from benchmarks.steps import StepError
from campo_onnx.bench.statistics import MIN_SAMPLES
from campo_onnx.hardware.processor import this_processor
from campo_onnx.runtime.machine import cores, cpu_name
from campo_onnx.targets.detect import cpu_figures

Facts = dict[str, Any]

_LOSS_TOLERANCE = 1e-3  # FP32 sides compute one loss, in other orders
_FEWEST, _MOST = 2, 50
_SETTLES_S = 0.1  # until a process that was stopped is counted as such
_LOOKS_EVERY = 4


class Effort(NamedTuple):
    """How long to measure.

    Parameters
    ----------
    turn_s
        How long a side steps before the next one does; at least two steps.
    budget_s
        After how long no further round begins, when there are enough for an interval.
    rounds
        After how many rounds none follows.
    ready_s
        After how long a side is left out that has not run its first steps; torch.compile takes minutes.
    """

    turn_s: float
    budget_s: float
    rounds: int
    ready_s: float


def in_turns(
    name: str,
    graphs: Path,
    sides: Sequence[str],
    effort: Effort,
    is_apart: bool = True,
    module: str = MODULE,
) -> Facts:
    """Time the sides of a network.

    Parameters
    ----------
    name
        The network, prepared below `graphs`.
    graphs
        Parent of the folder of its graphs.
    sides
        Names from :data:`benchmarks.measured.sides.SIDES`; one that fails leaves the others as they are.
    effort
        How long.
    is_apart
        Whether each side has a process of its own; plans that one runtime runs need none.
    module
        What each process runs.

    Raises
    ------
    StepError
        If a side in FP32 computes another loss than torch, gradients are further off than roundings explain,
        or torch runs on another number of threads than ours.
    """
    began = here()
    with ExitStack() as stack:
        groups = [[side] for side in sides] if is_apart else [sides]
        starting = [Worker(group, name, graphs, module) for group in groups]
        for worker in starting:  # all at once: what they import and compile is not measured
            stack.callback(worker.end)
        workers: dict[str, Worker] = {}
        facts: dict[str, Mapping[str, Any]] = {}
        end_s = time.monotonic() + effort.ready_s
        for worker in starting:
            try:
                answers = worker.wait_until_ready(end_s - time.monotonic())
            except RuntimeError as error:
                answers = {side: {"failure": str(error)} for side in worker.sides}
                worker.end()  # it may still compile
            facts |= answers
            workers |= {side: worker for side, answer in answers.items() if "failure" not in answer}
        losses = {side: facts[side]["loss"] for side in workers}
        errors = {
            side: {key: value for key, value in facts[side].items() if key != "loss"}
            for side in workers
            if "gradient_error" in facts[side]
        }
        refuse_other_threads({side: facts[side]["threads"] for side in workers if "threads" in facts[side]})
        refuse_other_losses(losses)
        refuse_unexplained(errors)
        times_ms, others = _rounds(workers, effort)
    return {
        **began,
        "load_after": os.getloadavg()[0],
        "others_running": fmean(others) if others else None,
        "failures": {side: one["failure"] for side, one in facts.items() if "failure" in one},
        "losses": losses,
        "gradients": errors,
        "rounds_ms": times_ms,
    }


def _rounds(workers: Mapping[str, Worker], effort: Effort) -> tuple[dict[str, list[float]], list[int]]:
    """Give the times of each side by round, and how much else ran while all sides were stopped."""
    steps = {}
    for side, worker in workers.items():
        once_s = median(worker.times_ms(side, _FEWEST)) / 1e3
        steps[side] = max(_FEWEST, min(round(effort.turn_s / once_s), _MOST))
    times_ms: dict[str, list[float]] = {side: [] for side in workers}
    others: list[int] = []
    order, end_s = list(workers), time.monotonic() + effort.budget_s
    for number in range(effort.rounds if order else 0):
        if number >= MIN_SAMPLES and time.monotonic() > end_s:
            break
        first = number % len(order)
        for side in order[first:] + order[:first]:
            times_ms[side].append(median(workers[side].times_ms(side, steps[side])))
        if number % _LOOKS_EVERY == 0:
            time.sleep(_SETTLES_S)
            others += others_running()
    return times_ms, others


def others_running() -> list[int]:
    """Count what wants a core besides this process, where the system tells: Linux."""
    path = Path("/proc/loadavg")
    if not path.is_file():
        return []
    running, _, _ = path.read_text(encoding="ascii").split()[3].partition("/")
    return [max(0, int(running) - 1)]


def refuse_other_threads(threads: Mapping[str, int]) -> None:
    """Refuse sides whose defaults differ in the number of threads, as where a core has two."""
    for side, count in threads.items():
        if count != THREADS:
            raise StepError(
                f"{side} has {count} threads, and ours have {THREADS}: set OMP_NUM_THREADS and the affinity "
                "of the benchmark so that they agree"
            )


def refuse_other_losses(losses: Mapping[str, float]) -> None:
    """Refuse sides in FP32 that do not compute torch's loss: they would not run the same step."""
    expected = losses.get("torch")
    for side in IN_FP32:
        if expected and side in losses and abs(losses[side] - expected) > _LOSS_TOLERANCE * abs(expected):
            raise StepError(f"the loss of {side} is {losses[side]:.6g}, and torch's {expected:.6g}")


def here() -> Facts:
    """Describe the machine as it is now: processor, units, governor, load, versions, date."""
    from campo_onnx.runtime.openvino.installed import openvino, openvino_problem

    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    is_absent = openvino_problem()
    units = [] if is_absent else openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    processor = this_processor()
    tiles = " with AMX" if processor is not None and "amx_bf16" in processor.features else ""
    return {
        "made": provenance("torch", "openvino", "transformers"),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_name() + tiles,
            "device": cpu_figures(cores()).name,
            "cores": cores(),
            "units": [unit for unit in units if unit in ("FP32", "BF16", "FP16", "INT8")],
            "governor": governor.read_text(encoding="ascii").strip() if governor.is_file() else "not told",
        },
        "load": os.getloadavg()[0],
    }
