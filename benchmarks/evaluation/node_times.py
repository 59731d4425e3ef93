"""How well single nodes are predicted: their costs held against their measured times (Figure 9)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.evaluation.strategies import options_for
from campo_onnx import optimize_model
from campo_onnx.calibrate.fit import model_accuracy
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.one_node import standalone
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.optimize.problem import Problem
from campo_onnx.targets.target import Target

CAST = "Cast"
OPERATORS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""The paper's MatMul, Conv2D, Conv2DBackpropFilter and Conv2DBackpropInput in these graphs: weight
gradients of convolutions are matrix products or convolutions, data gradients are transposed convolutions."""

_CASTS, _LARGEST_CAST_ELEMENTS = 12, 1 << 22

Progress = Callable[[int, int], None]
Times = list[dict[str, Any]]
"""Distinct nodes: operator, how many there are, measured and predicted times."""


def _problem(graph: Path, device: Target) -> Problem:
    return optimize_model(graph, replace(options_for(device), strategy="fp32")).problem


def node_times(graph: Path, device: Target, bench: NodeTimer, on_progress: Progress) -> Times:
    """Time each distinct product and convolution of a graph in both precisions."""
    problem = _problem(graph, device)
    names: defaultdict[Signature, list[str]] = defaultdict(list)
    for node in problem.view.nodes:
        if node.op.label in OPERATORS and (alone := standalone(problem.view, node.name)) is not None:
            names[alone].append(node.name)
    times = []
    for done, (signature, alike) in enumerate(names.items(), start=1):
        low = lowered(signature, ports_of(signature, Precision.FP16), Precision.FP16)
        try:
            fp32_us = bench.time(signature).median_us
            low_us = None if low is None else bench.time(low).median_us
        except UnsupportedModelError:
            continue  # a node that does not run alone has no time of its own
        cost, op = problem.costs.nodes[alike[0]], problem.view.node[alike[0]].op.label
        times.append(
            {"op": op, "count": len(alike), "fp32_us": fp32_us, "low_us": low_us}
            | {"predicted_fp32_us": cost.fp32_us, "predicted_low_us": cost.low_us}
        )
        on_progress(done, len(names))
    return times


def cast_times(graph: Path, device: Target, bench: NodeTimer, on_progress: Progress) -> Times:
    """Time Casts in both directions over a sweep of sizes."""
    cast = _problem(graph, device).costs.cast
    times = []
    for done, (elements, signature) in enumerate(
        cast_samples(_CASTS, _LARGEST_CAST_ELEMENTS, Precision.FP16), start=1
    ):
        predicted_us = dict.fromkeys(("predicted_fp32_us", "predicted_low_us"), cast.cast_us(elements))
        fp32_us = bench.time(signature).median_us
        times.append({"op": CAST, "count": 1, "fp32_us": fp32_us, "low_us": None, **predicted_us})
        on_progress(done, 2 * _CASTS)
    return times


def scores(times: Times) -> list[dict[str, Any]]:
    """M_A (Eq. 3) of FP32 and FP16 times by operator, over distinct nodes that took any measurable time."""
    rows = []
    for op in (CAST, *OPERATORS):
        part = pl.DataFrame([time for time in times if time["op"] == op and time["fp32_us"] > 0])
        if len(part):
            rows.append({"op": op, "nodes": len(part), **{p: _score(part, p) for p in ("fp32", "low")}})
    return rows


def _score(part: pl.DataFrame, precision: str) -> float | None:
    timed = part.filter(pl.col(f"{precision}_us") > 0)
    columns = timed[f"predicted_{precision}_us"], timed[f"{precision}_us"]
    return model_accuracy(*columns) if len(timed) else None


def mispredictions(times: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count nodes, Casts apart, by which precision is predicted to be faster, and which is (section 7.5)."""
    counts = dict.fromkeys(
        ("predicted_faster", "really_faster", "predicted_no_faster", "really_no_faster"), 0
    )
    for time in times:
        if time["op"] != CAST and time["low_us"] is not None:
            is_predicted = time["predicted_low_us"] < time["predicted_fp32_us"]
            kind = "faster" if is_predicted else "no_faster"
            counts[f"predicted_{kind}"] += time["count"]
            counts[f"really_{kind}"] += time["count"] * (is_predicted == (time["low_us"] < time["fp32_us"]))
    return counts
