"""Take the profile of one FP32 training step.

On a CPU the times come from the runtime's own profile of repeated steps; where its kernels compute several
nodes, their times are shared out. On CUDA that profile records launches only: there a trace of all kernels
is joined to nodes, and what it cannot tell, or all nodes where it cannot be trusted, is timed alone.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import polars as pl
from numpy.typing import NDArray

from campo_onnx.errors import DeviceUnavailableError, UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.measure.counters import Counted, counters_of
from campo_onnx.measure.events import events_of
from campo_onnx.measure.node_timer import LAUNCH_NODE, Measured, NodeTimer, time_all
from campo_onnx.measure.one_node import standalone
from campo_onnx.measure.profile import SCHEMA, MeasuredBy, Profile
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import CONSTANT
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.runtime.api import LoadSettings, StepTimes
from campo_onnx.runtime.onnxruntime.kernel_trace import Joined, disagreement
from campo_onnx.runtime.onnxruntime.kineto import record
from campo_onnx.runtime.registry import load, runtime_called
from campo_onnx.runtime.timing import Effort, Timing, measure
from campo_onnx.targets.roofline import node_time
from campo_onnx.targets.target import Target

_NOTHING = Timing(median_us=0.0, spread_us=0.0, repeats=0)
_WARMUP = 2
_SPOT_CHECKS = 5
_INTERRUPTED = "the profile was interrupted: it is of the steps until then"

Signatures = Mapping[str, Signature | None]
Feeds = Mapping[str, NDArray[Any]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Times read from a trace of whole steps."""

    how: MeasuredBy
    # Times by node name; nodes the trace says nothing about are missing.
    nodes: Mapping[str, Timing] = field(default_factory=dict)
    step_us: float
    accounted: float | None = None  # share of it that its node times add up to, or None
    refusal: str = ""
    interrupted: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", MappingProxyType(dict(self.nodes)))


def take_profile(
    imported: Imported,
    feeds: Feeds,
    timer: NodeTimer,
    target: Target,
    *,
    steps: int = 10,
    kernel_trace: bool = True,
    counters: bool = False,
    on_progress: Progress | None = None,
) -> Profile:
    """Run a graph and time its nodes."""
    view = imported.view
    signatures = {node.name: standalone(view, node.name) for node in view.nodes}
    runtime = runtime_called(timer.machine.runtime)
    if not timer.machine.is_gpu and runtime.capabilities.traces_nodes:
        traced = _trace_host(imported, feeds, timer, target, steps, on_progress)
    else:
        traced = Traced(how=MeasuredBy.KERNEL_TRACE, step_us=_step_us(imported, feeds, timer, steps))
        # Kernels are joined to nodes by when these are launched, one after the other.
        if kernel_trace and timer.machine.is_gpu and runtime.capabilities.runs_each_node:
            traced = trace_kernels(imported, feeds, timer, signatures, traced.step_us, steps=steps)
    own = [(n, s) for n, s in signatures.items() if s is not None and view.node[n].op != CONSTANT]
    missing = {signature.key: signature for name, signature in own if name not in traced.nodes}
    alone = {} if traced.interrupted else _time_alone(missing.values(), timer, on_progress)
    distinct = {signature.key: signature for _, signature in own}
    counted = counters_of(distinct.values(), timer) if counters else Counted(by_key={})
    rows = []
    for node in view.nodes:
        signature = signatures[node.name]
        timing, how = _timing(node, traced, alone, signature)
        rows.append(
            {
                "node": node.name,
                "op": node.op.label,
                "inputs": signature.input_types if signature else "",
                "outputs": signature.output_types if signature else "",
                "fp32_us": timing.median_us if timing else None,
                "spread_us": timing.spread_us if timing else None,
                "repeats": timing.repeats if timing else 0,
                "measured": how.value,
                **(events_of(signature, timing.median_us, target) if signature and timing else {}),
                **(counted.by_key.get(signature.key, {}) if signature else {}),
            }
        )
    stopped = _INTERRUPTED if traced.interrupted else ""
    return Profile(
        table=pl.DataFrame(rows, schema=SCHEMA),
        machine=timer.machine,
        digest=view.digest,
        step_us=traced.step_us,
        accounted=traced.accounted,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=tuple(note for note in (traced.refusal, counted.refusal, stopped) if note),
        interrupted=traced.interrupted,
    )


def trace_kernels(
    imported: Imported,
    feeds: Feeds,
    timer: NodeTimer,
    signatures: Signatures,
    step_us: float,
    *,
    steps: int,
    take: Callable[..., Joined] = record,
) -> Traced:
    """Trace all kernels of some steps, and hold the trace against nodes that are timed alone.

    A node whose kernels are shorter than a launch costs what the launch costs, which its kernels do not
    tell: it is left to be timed alone.

    `step_us`: the step as it runs without a profiler.
    """
    try:
        joined = take(
            imported.model, feeds, timer.machine, steps=steps, warmup=_WARMUP, folder=imported.folder
        )
    except DeviceUnavailableError as error:
        return Traced(
            how=MeasuredBy.KERNEL_TRACE, step_us=step_us, refusal=f"{error} Nodes were timed alone."
        )
    timings = joined.timings()
    longest: dict[str, str] = {}
    for name in sorted(timings, key=lambda node: -timings[node].median_us):
        signature = signatures.get(name)
        if signature is not None and len(longest) < _SPOT_CHECKS:
            longest.setdefault(signature.key, name)
    alone_us = {}
    for name in longest.values():
        signature = signatures[name]
        assert signature is not None
        try:
            alone_us[name] = timer.time(signature).median_us
        except UnsupportedModelError:
            continue  # what does not run alone cannot be compared
    if why := disagreement(joined, alone_us):
        refusal = f"the kernel trace was not used: {why}. Nodes were timed alone."
        return Traced(how=MeasuredBy.KERNEL_TRACE, step_us=step_us, refusal=refusal)
    launch_us = timer.time(LAUNCH_NODE).median_us
    return Traced(
        how=MeasuredBy.KERNEL_TRACE,
        nodes={name: timing for name, timing in timings.items() if timing.median_us >= launch_us},
        step_us=step_us,
        accounted=joined.accounted,
    )


def _trace_host(
    imported: Imported,
    feeds: Feeds,
    timer: NodeTimer,
    target: Target,
    steps: int,
    on_progress: Progress | None,
) -> Traced:
    done = _Counter(steps + _WARMUP, on_progress)
    settings = LoadSettings(traces=True)
    program = load(imported.model, timer.machine, folder=imported.folder, settings=settings)
    times = program.node_times(feeds, repeats=steps, warmup=_WARMUP, on_step=done.advance)
    del program
    traced = Traced(
        how=MeasuredBy.TRACE,
        nodes=_by_node(times),
        step_us=times.step.median_us,
        accounted=times.accounted,
        interrupted=times.interrupted,
    )
    if runtime_called(timer.machine.runtime).capabilities.runs_each_node:
        return traced
    if not times.interrupted:  # where kernels are short, counting their times takes as long as they do
        traced = replace(traced, step_us=_step_us(imported, feeds, timer, steps))
    shared = shared_out(times, traced.step_us, imported.view, target)
    return replace(traced, nodes=shared, accounted=None)  # all of the step, as it is shared out


def _by_node(times: StepTimes) -> Mapping[str, Timing]:
    """Times by ONNX node; of nodes that one kernel computes, the first has its time."""
    return {
        name: executed.time if name == executed.nodes[0] else _NOTHING
        for executed in times.nodes
        for name in executed.nodes
    }


def shared_out(times: StepTimes, step_us: float, view: GraphView, target: Target) -> Mapping[str, Timing]:
    """Share the times of kernels out among the nodes that each computes, in proportion to rooflines.

    The times add up to the step. What it takes besides these kernels, to start them and for copies that are
    of no node, is part of each of them. A node that no kernel names was computed when the graph was loaded,
    or together with one that is equal: it takes no time.

    Parameters
    ----------
    times
        A trace of the step.
    step_us
        The step without a trace.
    view
        The graph.
    target
        Whose roofline it is.
    """
    shared = dict.fromkeys((node.name for node in view.nodes), _NOTHING)
    kernels = [executed for executed in times.nodes if not shared.keys().isdisjoint(executed.nodes)]
    kernels_us = sum(executed.time.median_us for executed in kernels)
    started_us = max(step_us - kernels_us, 0.0) / max(len(kernels), 1)
    scale = min(step_us / kernels_us, 1.0) if kernels_us > 0 else 1.0
    for executed in kernels:
        roofline_us = {name: _roofline_us(view, name, target) for name in executed.nodes if name in shared}
        whole_us = sum(roofline_us.values())
        for name, own_us in roofline_us.items():
            share = own_us / whole_us if whole_us > 0 else 1 / len(roofline_us)
            before, timing = shared[name], executed.time
            shared[name] = Timing(
                median_us=before.median_us + share * (scale * timing.median_us + started_us),
                spread_us=before.spread_us + share * scale * timing.spread_us,
                repeats=timing.repeats,
            )
    return shared


def _roofline_us(view: GraphView, name: str, target: Target) -> float:
    """FP32 time by public figures; views of tensors take none."""
    signature = view.signature(name)
    if work_of(signature).kind in HOST_ONLY:
        return 0.0
    return node_time(signature, Ports(), target, Precision.FP32).time_us


def _step_us(imported: Imported, feeds: Feeds, timer: NodeTimer, steps: int) -> float:
    settings = LoadSettings(must_stay=False)
    program = load(imported.model, timer.machine, folder=imported.folder, settings=settings)
    step = program.placed(feeds)
    return measure(step, Effort(warmup=_WARMUP, repeats=steps, budget_s=60.0)).median_us


class _Counter:
    """Counts up towards a total and tells somebody."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self.done, self.total, self.tell = 0, total, tell

    def advance(self, _measured: Measured | None = None) -> None:
        self.done += 1
        if self.tell is not None:
            self.tell(self.done, self.total)


def _time_alone(
    distinct: Collection[Signature], timer: NodeTimer, on_progress: Progress | None
) -> Mapping[str, Timing]:
    """Time each signature once; by signature."""
    done = _Counter(len(distinct), on_progress if distinct else None)
    measured = time_all(distinct, timer, done.advance)
    return {m.signature.key: m.timing for m in measured if m.timing is not None}


def _timing(
    node: OpNode, traced: Traced, alone: Mapping[str, Timing], signature: Signature | None
) -> tuple[Timing | None, MeasuredBy]:
    if node.op == CONSTANT:
        return _NOTHING, MeasuredBy.CONSTANT
    if node.name in traced.nodes:
        return traced.nodes[node.name], traced.how
    if signature is not None and signature.key in alone:
        return alone[signature.key], MeasuredBy.ONE_NODE
    return None, MeasuredBy.FAILED
