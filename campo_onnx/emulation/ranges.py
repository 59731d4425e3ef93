"""The range of every tensor of a step on real data, and what a low precision would lose of it.

The statistics are computed inside the step by a few nodes per tensor and leave it as five numbers,
so no tensor is kept or copied out: the memory is that of one step.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from campo_onnx.ir.proto import replace_items
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.machine import Machine

_PREFIX = "campo_range"
_STATISTICS = ("largest", "sum", "lost", "over", "flushed", "subnormal", "nonzero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Magnitudes of one tensor over some batches, and what a low precision loses of them."""

    largest: float  # largest magnitude; infinite or NaN where the FP32 step is
    # overflow_share, flushed_share, subnormal_share: shares of its nonzero values that overflow, become zero,
    # or keep fewer bits.
    overflow_share: float
    flushed_share: float
    subnormal_share: float
    # Sum of the magnitudes that become zero, over the sum of all magnitudes: small values beside large ones
    # do not count for more than they weigh.
    lost_mass: float

    def merged(self, other: "Range") -> "Range":
        """The worse of two batches, figure by figure."""
        return Range(
            largest=float(np.fmax(self.largest, other.largest)),
            overflow_share=max(self.overflow_share, other.overflow_share),
            flushed_share=max(self.flushed_share, other.flushed_share),
            subnormal_share=max(self.subnormal_share, other.subnormal_share),
            lost_mass=max(self.lost_mass, other.lost_mass),
        )


def ranges_of(
    model: ModelProto,
    tensors: Iterable[str],
    batches: Iterable[Mapping[str, NDArray[Any]]],
    precision: Precision,
    machine: Machine,
) -> dict[str, Range]:
    """Run the FP32 step on each batch and record the ranges of `tensors`."""
    wanted = list(dict.fromkeys(tensors))
    if not wanted:
        return {}
    watched = _watched(model, wanted, precision)
    worst: dict[str, Range] = {}
    for feeds in batches:
        values = run(watched, feeds, machine)
        for index, name in enumerate(wanted):
            one = _range(values[f"{_PREFIX}_{index}"])
            worst[name] = worst[name].merged(one) if name in worst else one
    return worst


def _range(statistics: NDArray[Any]) -> Range:
    row = dict(zip(_STATISTICS, map(float, statistics), strict=True))
    nonzero = max(row["nonzero"], 1.0)
    return Range(
        largest=row["largest"],
        overflow_share=row["over"] / nonzero,
        flushed_share=row["flushed"] / nonzero,
        subnormal_share=row["subnormal"] / nonzero,
        lost_mass=row["lost"] / row["sum"] if row["sum"] else 0.0,
    )


def _watched(model: ModelProto, tensors: list[str], precision: Precision) -> ModelProto:
    """Add the statistics to a copy of the step; they are its only outputs."""
    watched = deepcopy(model)
    graph = watched.graph
    del graph.output[:]
    smallest = precision.smallest_normal * 2.0**-precision.fraction_bits
    for name, value in (
        ("zero", 0.0),
        ("smallest", smallest / 2),  # half of the smallest subnormal rounds to zero
        ("normal", precision.smallest_normal),
        ("most", precision.largest),
    ):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"{_PREFIX}_{name}"))
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), f"{_PREFIX}_one"))
    by_producer = {t: node.name for node in graph.node for t in node.output}
    after: dict[str, list[NodeProto]] = {}
    for index, tensor in enumerate(tensors):
        after.setdefault(by_producer.get(tensor, ""), []).extend(_statistics(tensor, f"{_PREFIX}_{index}"))
        graph.output.append(
            onnx.helper.make_tensor_value_info(f"{_PREFIX}_{index}", TensorProto.FLOAT, [len(_STATISTICS)])
        )
    # Right behind the producer, so that the tensor can be freed as soon as in the plain step.
    nodes = list(after.get("", []))
    for node in graph.node:
        nodes += [node, *after.get(node.name, [])]
    replace_items(graph.node, nodes)
    return watched


def _statistics(tensor: str, prefix: str) -> list[NodeProto]:
    nodes: list[NodeProto] = []

    def node(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{prefix}_{len(nodes)}"
        nodes.append(onnx.helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def count(condition: str) -> str:
        return node("ReduceSum", node("Cast", condition, to=TensorProto.FLOAT), keepdims=0)

    magnitude = node("Abs", tensor)
    tiny = node("LessOrEqual", magnitude, f"{_PREFIX}_smallest")
    nonzero = node("Greater", magnitude, f"{_PREFIX}_zero")
    lost = node("Where", tiny, magnitude, f"{_PREFIX}_zero")
    below_normal = node("And", node("Less", magnitude, f"{_PREFIX}_normal"), node("Not", tiny))
    scalars = (
        node("ReduceMax", magnitude, keepdims=0),
        node("ReduceSum", magnitude, keepdims=0),
        node("ReduceSum", lost, keepdims=0),
        # An infinity is one in every precision: a mask of -inf loses nothing.
        count(node("And", node("Greater", magnitude, f"{_PREFIX}_most"), node("Not", node("IsInf", tensor)))),
        count(node("And", tiny, nonzero)),
        count(below_normal),
        count(nonzero),
    )
    rows = [node("Reshape", scalar, f"{_PREFIX}_one") for scalar in scalars]
    nodes.append(onnx.helper.make_node("Concat", rows, [prefix], name=prefix, axis=0))
    return nodes
