"""ONNX Runtime's own profile of repeated steps: time of every node.

True on the CPU provider. On CUDA the published wheels record when a kernel was launched, not how
long it ran, so this is for CPUs only.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.files import temporary_folder
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import Machine
from campo_onnx.runtime.onnxruntime.sessions import bind, open_session
from campo_onnx.runtime.timing import Timing, timing_of

_SUFFIX = "_kernel_time"
_STEP = "SequentialExecutor::Execute"
_RUN = "model_run"
_EVENTS_KEPT = 900_000  # ONNX Runtime drops events beyond a million


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Times over the faster half of repeated steps.

    Parameters
    ----------
    nodes
        By node name. A node that ONNX Runtime replaced by others (a function it inlined) or took
        out (a Constant) is missing.
    step
        The whole step as ONNX Runtime timed it.
    accounted
        Share of a step that its own node times add up to, median over the steps. On a busy machine
        the medians of the nodes add up to less: what disturbs a step hits another node each time.
    interrupted
        Whether Ctrl-C ended it before all steps were run.
    """

    nodes: Mapping[str, Timing]
    step: Timing
    accounted: float
    interrupted: bool = False

    @property
    def nodes_us(self) -> float:
        """Sum of all nodes."""
        return sum(timing.median_us for timing in self.nodes.values())


def trace(
    model: onnx.ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    machine: Machine,
    *,
    steps: int,
    warmup: int = 2,
    folder: Path | None = None,
    on_step: Callable[[], None] | None = None,
    spins: bool = True,
) -> Trace:
    """Run a graph some times under ONNX Runtime's profiler.

    Parameters
    ----------
    model
        The graph; every node has a name.
    feeds
        A value for every input.
    machine
        Where to run; a CPU.
    steps, warmup
        Steps that count, and those before them that do not.
    folder
        Folder of external data.
    on_step
        Called after every step.
    spins
        See :func:`~campo_onnx.runtime.onnxruntime.sessions.open_session`.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime cannot load or run the graph.
    KeyboardInterrupt
        If the user ends it before the first step that counts; after that, what was traced is returned.
    """
    affordable = _EVENTS_KEPT // (len(model.graph.node) + 4)
    steps = max(1, min(steps, affordable - warmup))
    with temporary_folder() as workshop:
        session = open_session(model, machine, folder=folder, trace_to=workshop / "trace", spins=spins)
        step = bind(session, feeds, machine.provider)
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
        events = read_profiling(session)
    return replace(read_events(events, skip=warmup), interrupted=interrupted)


def read_profiling(session: ort.InferenceSession) -> Any:
    """Read what a session has written about its nodes.

    Raises
    ------
    UsageError
        If it is not whole: ONNX Runtime does not say that a disk is full.
    """
    try:
        return json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            "the trace that ONNX Runtime wrote cannot be read",
            why=str(error),
            remedy="Free the disk, or let TMPDIR name a folder on another one.",
        ) from None


def read_events(events: list[dict[str, Any]], *, skip: int = 0) -> Trace:
    """Collect times per node from profile events.

    Parameters
    ----------
    events
        The parsed profile; durations are whole microseconds.
    skip
        Steps at the beginning that do not count.
    """
    nodes: dict[str, list[float]] = defaultdict(list)
    whole: list[float] = []
    last_us = 0.0
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            nodes[name.removesuffix(_SUFFIX)].append(float(event["dur"]))
        elif name == _STEP:
            last_us = float(event["dur"])  # bodies of control flow are timed too, and end earlier
        elif name == _RUN:
            whole.append(last_us)
    kept = _faster_half(whole, skip)
    return Trace(
        nodes={name: timing_of(_of_steps(times, kept, len(whole))) for name, times in nodes.items()},
        step=timing_of([whole[i] for i in kept]),
        # A step shorter than a tick of the clock, a microsecond, reads as zero.
        accounted=median(_sum_of_step(nodes, i, len(whole)) / max(whole[i], 1.0) for i in kept),
    )


def _sum_of_step(nodes: Mapping[str, list[float]], step: int, steps: int) -> float:
    return sum(times[step] for times in nodes.values() if len(times) == steps)


def _faster_half(whole: list[float], skip: int) -> list[int]:
    """Steps that other programs disturbed least: they only ever make one slower."""
    counted = sorted(range(skip, len(whole)), key=lambda step: whole[step])
    return counted[: (len(counted) + 1) // 2]


def _of_steps(times: list[float], kept: list[int], steps: int) -> list[float]:
    # A node in a body of control flow runs another number of times than there are steps.
    return [times[i] for i in kept] if len(times) == steps else times
