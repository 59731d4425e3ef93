"""Steps of a session on a device: what calibrations, cost models and profiles are checked against."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.stepped import Candidate, Effort
from benchmarks.evaluation.stepped import measure as measure_graphs
from benchmarks.evaluation.strategies import CAMPO, FP32, OPTIMAL, TF_AMP, TORCH_AMP
from benchmarks.gpu_machine import LOW, Session, both_us, matmul
from benchmarks.gpu_plans import planned
from benchmarks.steps import Call, StepError
from campo_onnx.builder.graph import Graph as GraphBuilder
from campo_onnx.builder.value import Value
from campo_onnx.calibrate.run import FULL, QUICK, Workload, calibrate
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.files import write_text
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.lowering.convolutions.gradient_as_kernel import swapped_convolution
from campo_onnx.lowering.convolutions.patches import Geometry
from campo_onnx.lowering.convolutions.weight_gradient import by_images, by_matmul
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.measure.counters import Counted, counters_of
from campo_onnx.measure.node_timer import LAUNCH_NODE, VIEW_NODE, NodeTimer
from campo_onnx.measure.one_node import standalone
from campo_onnx.measure.store import Execution
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime.kernel_trace import ACCOUNTED
from campo_onnx.runtime.onnxruntime.kineto import record
from campo_onnx.runtime.onnxruntime.ncu import LIMIT_S, count
from campo_onnx.runtime.registry import load
from campo_onnx.runtime.timing import Effort as RuntimeEffort
from campo_onnx.runtime.timing import measure

_LARGEST_SWEEP = 64  # sizes of casts: a full calibration measures more, and is a step of its own
_BENCH = Effort(steps=50, budget_s=40.0, energy=False)
_FORM_EFFORT = RuntimeEffort(warmup=2, repeats=8, least=3, budget_s=0.1, spin_s=0.02)
_VARIANT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Strategies whose graphs take turns, and for how long."""

    labels: tuple[str, ...]
    effort: Effort


EVERY = Compared(labels=(FP32, TF_AMP, TORCH_AMP, CAMPO, OPTIMAL), effort=_BENCH)
REPLANNED = Compared(labels=(FP32, TF_AMP, CAMPO, OPTIMAL), effort=replace(_BENCH, budget_s=15.0))
CAPTURED = Compared(labels=(FP32, TF_AMP, OPTIMAL), effort=replace(_BENCH, budget_s=30.0, cuda_graph=True))
METERED = Compared(labels=(FP32, TF_AMP, OPTIMAL), effort=Effort(steps=6, budget_s=5.0))
"""For energy, whose samples take a second each."""


def time_launches(session: Session, call: Call) -> dict[str, float]:
    """Time of nodes that do next to nothing, one after another and inside a CUDA graph."""
    nodes = {"launches a kernel": LAUNCH_NODE, "renames bytes": VIEW_NODE}
    medians_us = {f"{name}, stream": session.bench.time(node).median_us for name, node in nodes.items()}
    if not session.on_cpu:
        captured = NodeTimer(
            machine=session.bench.machine, store=session.bench.store, execution=Execution.GRAPH
        )
        medians_us["launches a kernel, CUDA graph"] = captured.time(LAUNCH_NODE).median_us
    return medians_us


def sweep_casts(session: Session, call: Call) -> list[dict[str, Any]]:
    """Casts in both directions by number of elements."""
    workload, rows = workload_of(session, full=False), []
    sweep = list(cast_samples(min(workload.casts, _LARGEST_SWEEP), workload.largest_cast_elements, LOW))
    for done, (elements, signature) in enumerate(sweep, start=1):
        timing = session.bench.time(signature)
        rows.append({"elements": elements, "node": signature.input_types, **asdict(timing)})
        call.deadline.tick(done, len(sweep))
    return rows


def sweep_alignment(session: Session, call: Call) -> list[dict[str, Any]]:
    """Matrix products off, on and far on the multiples that tensor cores want."""
    base = 256 if session.on_cpu else 4096
    sizes = [base - 1, base, base + 8, base + 63, base + 64]
    shapes = [(base, k, n) for k in sizes for n in sizes]
    rows = []
    for done, (m, k, n) in enumerate(shapes, start=1):
        rows.append({"m": m, "k": k, "n": n, **both_us(matmul(m, k, n), session)})
        call.deadline.tick(done, len(shapes))
    return rows


_LAYERS = (
    (128, 64, 56, 64, 3, 1, 1), (128, 128, 28, 128, 3, 1, 1), (128, 256, 14, 256, 3, 1, 1),
    (128, 512, 7, 512, 3, 1, 1), (128, 128, 56, 128, 3, 2, 1), (128, 256, 28, 256, 3, 2, 1),
    (128, 3, 224, 64, 7, 2, 3), (256, 3, 224, 64, 11, 4, 2), (256, 64, 27, 192, 5, 1, 2),
    (256, 192, 13, 384, 3, 1, 1), (256, 64, 32, 128, 4, 2, 1), (256, 256, 8, 512, 4, 2, 1),
)  # fmt: skip
"""Convolutions of ResNet-50, AlexNet and DCGAN: images, channels, rows, outputs, taps, stride, padding."""

_GRADIENT_FORMS: Mapping[str, Callable[..., Value]] = {
    "matmul": by_matmul,
    "images": by_images,
    "conv": swapped_convolution,
}


def weight_gradients(session: Session, call: Call) -> list[dict[str, Any]]:
    """Time the forms of a convolution's weight gradient, in both precisions."""
    layers = [(2, 4, 8, 4, 3, 1, 1)] if session.on_cpu else _LAYERS
    rows: list[dict[str, Any]] = []
    for done, layer in enumerate(layers, start=1):
        row: dict[str, Any] = {"layer": layer}
        for precision in (Precision.FP32, LOW):
            feeds = None
            for name, form in _GRADIENT_FORMS.items():
                imported = _gradient(layer, form, precision, session)
                feeds = feeds or synthesize(imported.view)
                step = load(imported.model, session.bench.machine).placed(feeds)
                row[f"{name}_{precision.value}_us"] = measure(step, _FORM_EFFORT).median_us
        rows.append(row)
        call.deadline.tick(done, len(layers))
    return rows


def _gradient(
    layer: Sequence[int], form: Callable[..., Value], precision: Precision, session: Session
) -> Imported:
    images, channels, size, outputs, taps, stride, padding = layer
    result = (size + 2 * padding - taps) // stride + 1
    geometry = Geometry(strides=(stride,) * 2, pads=(padding,) * 2, dilations=(1, 1), groups=1)
    g = GraphBuilder(opset=20, target=Place(target=session.device).operators)
    x = g.input("x", precision.onnx_dtype, (images, channels, size, size))
    dy = g.input("dy", precision.onnx_dtype, (images, outputs, result, result))
    dw = form(g, x, dy, shape=(outputs, channels, taps, taps), geometry=geometry)
    return import_model(g.model({"dw": dw}, optional_inputs=frozenset()))


def trace_graph(graph: Path, session: Session, call: Call) -> dict[str, Any]:
    """Trace the kernels of a step, FP32 and optimal: time by operator. Node times go into the store.

    Kernels of one node that overlap count twice; then nothing is kept.
    """
    members = planned(graph, (FP32, OPTIMAL), session)
    feeds, rows = synthesize(members[0].imported.view), {}
    launch_us = session.bench.time(LAUNCH_NODE).median_us
    for member in members:
        view = member.imported.view
        joined = record(
            member.imported.model, feeds, session.bench.machine, steps=3, folder=member.imported.folder
        )
        call.deadline.tick(0, 1)
        if is_whole := abs(joined.accounted - 1) <= ACCOUNTED:
            for name, timing in joined.timings().items():
                signature = standalone(view, name)
                if signature is not None and timing.median_us >= launch_us:
                    key = session.bench.key(signature)
                    if session.bench.store.find(key) is None:
                        session.bench.store.add(key, timing)
        rows[" = ".join(member.labels)] = {
            "busy_us": float(np.median(joined.busy_us)),
            "accounted": joined.accounted,
            "kept": is_whole,
            "operators": by_operator({n: t.median_us for n, t in joined.timings().items()}, view),
        }
    return rows


def by_operator(times_us: Mapping[str, float], view: GraphView) -> list[dict[str, Any]]:
    """Sum the times of nodes by operator, the longest first."""
    sums: dict[str, list[float]] = defaultdict(list)
    for name, time_us in times_us.items():
        sums[view.node[name].op.label].append(time_us)
    ranked = sorted(sums.items(), key=lambda item: -sum(item[1]))
    return [{"op": op, "nodes": len(times), "us": sum(times)} for op, times in ranked]


def bench_graph(graph: Path, compared: Compared, session: Session, call: Call) -> dict[str, Any]:
    """Step a graph in FP32 and as strategies plan it, in turns."""
    members = planned(graph, compared.labels, session)
    return _measured(members, compared.effort, session, call)


def time_variants(graph: Path, session: Session, call: Call) -> dict[str, Any]:
    """Time the FP32 step with TF32, without, and with channels last: each in a process that starts CUDA."""
    by_label = {}
    for label, override, layout in (
        ("tf32", {}, ()),
        ("fp32", {"NVIDIA_TF32_OVERRIDE": "0"}, ()),
        ("tf32, channels last", {}, ("channels-last",)),
    ):
        command = [sys.executable, "-m", "benchmarks.fp32_step", session.provider, str(graph), *layout]
        environment = {name: value for name, value in os.environ.items() if name != "NVIDIA_TF32_OVERRIDE"}
        call.deadline.need(10.0)
        done = subprocess.run(
            command, env=environment | override, capture_output=True, text=True, timeout=_VARIANT_LIMIT_S
        )
        if done.returncode:
            raise StepError(done.stderr.strip().splitlines()[-1])
        by_label[label] = json.loads(done.stdout)
    return by_label


def bench_forms(forms: Mapping[str, Path], session: Session, call: Call) -> dict[str, Any]:
    """Step the graphs of a model whose convolutions' weight gradients differ in form, FP32 and optimal."""
    members = []
    for form, graph in forms.items():
        for member in planned(graph, (FP32, OPTIMAL), session):
            labels = tuple(f"{form}, {label}" for label in member.labels)
            members.append(replace(member, labels=labels))
    return _measured(members, _BENCH, session, call)


def _measured(members: Sequence[Candidate], effort: Effort, session: Session, call: Call) -> dict[str, Any]:
    effort = replace(effort, budget_s=min(effort.budget_s, session.round_s))
    measured = measure_graphs(members, session.bench.machine, effort, None, call.deadline)
    calibrated = session.calibrated
    return measured | {"planned_with": calibrated.name if calibrated else "shipped or public figures"}


def profile_graph(graph: Path, session: Session, call: Call) -> dict[str, Any]:
    """Profile a graph: with a kernel trace where that works, and hardware counters."""
    try:  # profiles are tables of polars, which a first call does without
        from campo_onnx.measure.profile import read_profile, write_profile
        from campo_onnx.measure.profiler import take_profile
    except ImportError as error:
        raise StepError(f"a profile needs polars: {error}") from None
    imported = as_it_runs(import_model(graph), Place.on(session.bench.machine))
    profile = take_profile(
        imported,
        synthesize(imported.view),
        session.bench,
        session.device,
        steps=12,
        counters=not session.on_cpu,
        on_progress=call.deadline.tick,
    )
    write_profile(profile, session.folder / f"{graph.stem}.parquet")
    back = read_profile(session.folder / f"{graph.stem}.parquet")
    return {
        "nodes": len(back.table),
        "not_measured": back.failed,
        "measured": dict(back.table["measured"].value_counts().iter_rows()),
        "notes": back.notes,
        "step_us": back.step_us,
        "nodes_us": back.nodes_us,
        "accounted": back.accounted,
        "operators": back.ops().head(8).to_dicts(),
    }


def calibrate_device(
    precision: Precision, full: bool, counted: bool, session: Session, call: Call
) -> dict[str, Any]:
    """Calibrate, and write the file. Counters come last: they may take hours, or be refused."""
    calibration = calibrate(
        workload_of(session, full=full),
        session.bench,
        session.device,
        precision,
        call.deadline.tick,
        _counting(call) if counted else None,
    )
    path = session.calibration_path(precision, full=full)
    write_text(calibration.to_json(), path)
    return {
        "file": path.name,
        "score": calibration.score,
        "operators": calibration.operators,
        "counters_refusal": calibration.counters_refusal,
    }


def _counting(call: Call) -> Callable[[Iterable[Signature], NodeTimer], Counted]:
    def read(files: Sequence[Path]) -> Sequence[Mapping[str, float] | None]:
        call.deadline.need(60.0)  # less is too short for a batch; those before it are kept
        return count(files, limit_s=min(LIMIT_S, call.deadline.left_s))

    return lambda signatures, bench: counters_of(signatures, bench, read)


def workload_of(session: Session, *, full: bool) -> Workload:
    """How much a calibration measures here."""
    if full:
        return FULL[session.provider]
    quick = QUICK[session.provider]
    sampling = replace(quick.sampling, count=session.shapes)
    return replace(quick, ops=session.ops or quick.ops, sampling=sampling)
