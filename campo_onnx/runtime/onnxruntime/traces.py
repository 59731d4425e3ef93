"""ONNX Runtime's own profile of repeated steps: time of every node.

True on the CPU provider. On CUDA the published wheels record when a kernel was launched, not how
long it ran, so this is for CPUs only.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.runtime.api import NodeTime, StepTimes
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.timing import Step, timing_of

_SUFFIX = "_kernel_time"
_STEP = "SequentialExecutor::Execute"
_RUN = "model_run"
_EVENTS_KEPT = 900_000  # ONNX Runtime drops events beyond a million


def affordable_steps(steps: int, warmup: int, nodes: int) -> int:
    """Limit the steps that count to those whose events ONNX Runtime keeps."""
    return max(1, min(steps, _EVENTS_KEPT // (nodes + 4) - warmup))


def times_of(
    session: ort.InferenceSession,
    step: Step,
    *,
    steps: int,
    warmup: int,
    on_step: Callable[[], None] | None = None,
) -> StepTimes:
    """Run a step some times under ONNX Runtime's profiler.

    The session is one that writes a profile; it ends here. A KeyboardInterrupt is passed on before the first
    step that counts; after that, what was traced is returned.
    """
    done, interrupted = 0, False
    try:
        for _ in range(warmup + steps):
            step()
            done += 1
            if on_step is not None:
                on_step()
    except KeyboardInterrupt:
        if done <= warmup:
            raise
        interrupted = True
    return replace(read_events(read_profiling(session), skip=warmup), interrupted=interrupted)


def read_profiling(session: ort.InferenceSession) -> Any:
    """Read what a session has written about its nodes.

    UsageError says that it is not whole: ONNX Runtime does not say that a disk is full.
    """
    try:
        return json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            "the trace that ONNX Runtime wrote cannot be read",
            why=str(error),
            remedy="Free the disk, or let TMPDIR name a folder on another one.",
        ) from None


def read_events(events: list[dict[str, Any]], *, skip: int = 0) -> StepTimes:
    """Collect times per node from profile events.

    Durations are whole microseconds.
    """
    nodes: dict[str, list[float]] = defaultdict(list)
    kernels: dict[str, str] = {}
    whole: list[float] = []
    last_us = 0.0
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            node = name.removesuffix(_SUFFIX)
            nodes[node].append(float(event["dur"]))
            kernels[node] = str(event.get("args", {}).get("op_name", ""))
        elif name == _STEP:
            last_us = float(event["dur"])  # bodies of control flow are timed too, and end earlier
        elif name == _RUN:
            whole.append(last_us)
    faster = _faster_half(whole, skip)
    return StepTimes(
        nodes=tuple(
            NodeTime(
                nodes=(name,),
                kernel=kernels[name],
                precision=None,
                time=timing_of(_of_steps(times, faster, len(whole))),
            )
            for name, times in nodes.items()
        ),
        step=timing_of([whole[i] for i in faster]),
        # A step shorter than a tick of the clock, a microsecond, reads as zero.
        accounted=median(_sum_of_step(nodes, i, len(whole)) / max(whole[i], 1.0) for i in faster),
    )


def _sum_of_step(nodes: Mapping[str, list[float]], step: int, steps: int) -> float:
    return sum(times[step] for times in nodes.values() if len(times) == steps)


def _faster_half(whole: list[float], skip: int) -> list[int]:
    """Steps that other programs disturbed least: they only ever make one slower."""
    counted = sorted(range(skip, len(whole)), key=lambda step: whole[step])
    return counted[: (len(counted) + 1) // 2]


def _of_steps(times: list[float], chosen: list[int], steps: int) -> list[float]:
    # A node in a body of control flow runs another number of times than there are steps.
    return [times[i] for i in chosen] if len(times) == steps else times
