"""Planning a forward graph that somebody else is going to differentiate."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx

from campo_onnx.integrations.backward import with_backward
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, problem_of


@dataclass(frozen=True, kw_only=True)
class PlannedGraph:
    """Decisions about one graph that ORTModule exported.

    With ``backward=True`` the plan's times are of the whole step. `model` is the forward graph handed to the
    gradient builder; None where the plan keeps all in FP32 and ORTModule's own was left alone.
    """

    plan: Plan
    model: onnx.ModelProto | None
    sizes: Mapping[str, int]  # sizes of the symbolic dimensions it was planned at: those of the first batch

    def __str__(self) -> str:
        plan = self.plan
        return (
            f"{len(plan.low_nodes)} of {len(plan.decisions)} forward nodes in {plan.low.value}, "
            f"{len(plan.casts)} casts; predicted {plan.fp32_us:.0f} us -> {plan.predicted_us:.0f} us a step "
            f"on {plan.device} ({plan.source})"
        )


def plan_forward(
    forward: onnx.ModelProto,
    gradient: onnx.ModelProto | None,
    shapes: Mapping[str, tuple[int, ...]],
    options: Options,
) -> PlannedGraph:
    """Plan a forward graph, with each node's backward nodes counted in.

    `gradient` is the same graph with its backward nodes in FP32; None plans by forward times alone. The
    `dims` of the options are not looked at.
    """
    sizes = sizes_of(forward.graph, shapes)
    imported = import_model(forward, sizes)
    problem = problem_of(imported, options)
    if gradient is not None:
        dims = sizes_of(gradient.graph, shapes)
        problem = with_backward(problem, problem_of(import_model(gradient, dims), options))
    plan = decide(problem, imported, options)
    return PlannedGraph(
        plan=plan, model=rewrite(imported, plan) if plan.low_nodes else None, sizes=MappingProxyType(sizes)
    )


def sizes_of(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Bind the open dimensions of a graph's inputs to the sizes of a batch."""
    sizes = {}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and value.name in shapes:
                sizes[dim.dim_param or f"{value.name}[{axis}]"] = shapes[value.name][axis]
    return sizes
