"""How well single nodes are predicted: their costs held against their measured times (Figure 9)."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation.strategies import options_for
from campo_onnx import optimize_model
from campo_onnx.calibrate.fit import model_accuracy
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.devices.device import Device
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.one_node import standalone
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature

CAST = "Cast"
OPERATORS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""What the paper's MatMul, Conv2D, Conv2DBackpropFilter and Conv2DBackpropInput are in these graphs: weight
gradients of convolutions are matrix products, data gradients are transposed convolutions."""

_CASTS, _LARGEST_CAST_ELEMENTS = 12, 1 << 22

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """One distinct node."""

    op: str
    count: int
    fp32_us: float
    low_us: float | None
    predicted_fp32_us: float
    predicted_low_us: float


def node_times(graph: Path, device: Device, bench: NodeTimer, on_progress: Progress) -> tuple[NodeTime, ...]:
    """Time each distinct product and convolution of a graph in both precisions."""
    problem = optimize_model(graph, replace(options_for(device), strategy="fp32")).problem
    view = problem.view
    signatures: dict[str, Signature] = {}
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for node in view.nodes:
        if node.op.label in OPERATORS and (signature := standalone(view, node.name)) is not None:
            counts[signature.key] += 1
            signatures.setdefault(signature.key, signature)
            names.setdefault(signature.key, node.name)
    found = []
    for done, (key, signature) in enumerate(signatures.items(), start=1):
        cost = problem.costs.nodes[names[key]]
        low = lowered(signature, ports_of(signature, Precision.FP16), Precision.FP16)
        try:
            fp32_us = bench.time(signature).median_us
            low_us = None if low is None else bench.time(low).median_us
        except UnsupportedModelError:
            continue  # a node that does not run alone has no time of its own
        found.append(
            NodeTime(
                op=view.node[names[key]].op.label,
                count=counts[key],
                fp32_us=fp32_us,
                low_us=low_us,
                predicted_fp32_us=cost.fp32_us,
                predicted_low_us=cost.low_us,
            )
        )
        on_progress(done, len(signatures))
    return tuple(found)


def cast_times(graph: Path, device: Device, bench: NodeTimer, on_progress: Progress) -> tuple[NodeTime, ...]:
    """Time Casts in both directions over a sweep of sizes."""
    cast = optimize_model(graph, replace(options_for(device), strategy="fp32")).problem.costs.cast
    sweep = list(cast_samples(_CASTS, _LARGEST_CAST_ELEMENTS, Precision.FP16))
    found = []
    for done, (elements, signature) in enumerate(sweep, start=1):
        measured_us, predicted_us = bench.time(signature).median_us, cast.cast_us(elements)
        found.append(
            NodeTime(
                op=CAST,
                count=1,
                fp32_us=measured_us,
                low_us=None,
                predicted_fp32_us=predicted_us,
                predicted_low_us=predicted_us,
            )
        )
        on_progress(done, len(sweep))
    return tuple(found)


def scores(times: Sequence[NodeTime]) -> list[dict[str, Any]]:
    """M_A (Eq. 3) of FP32 and FP16 times by operator, over distinct nodes that took any measurable time."""
    found = []
    for op in (CAST, *OPERATORS):
        full = [t for t in times if t.op == op and t.fp32_us > 0]
        if full:
            fp32 = model_accuracy([t.predicted_fp32_us for t in full], [t.fp32_us for t in full])
            pairs = [(t.predicted_low_us, t.low_us) for t in full if t.low_us]
            fp16 = model_accuracy(*zip(*pairs, strict=True)) if pairs else None
            found.append({"op": op, "nodes": len(full), "fp32": fp32, "low": fp16})
    return found


def mispredictions(times: Iterable[NodeTime]) -> dict[str, int]:
    """Count nodes, Casts apart, by which precision is predicted to be faster, and which is (section 7.5)."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for time in times:
        if time.op != CAST and time.low_us is not None:
            is_predicted = time.predicted_low_us < time.predicted_fp32_us
            counts[is_predicted, time.low_us < time.fp32_us] += time.count
    return {
        "predicted_faster": counts[True, True] + counts[True, False],
        "really_faster": counts[True, True],
        "predicted_no_faster": counts[False, True] + counts[False, False],
        "really_no_faster": counts[False, False],
    }
