"""Planning a forward graph that somebody else is going to differentiate.

A framework that is handed a forward graph writes the backward one itself, and follows it: gradients have the
type of what they are gradients of, and the gradient of a Cast is a Cast. So a forward node decides about its
backward nodes too, and is decided with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx

from campo_onnx.costs.table import NodeCost
from campo_onnx.ir.gradient_names import differentiated_node, gradient_of, summed_tensor
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import REFUSED, Reason
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
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


def owners(forward: GraphView, gradient: GraphView) -> Mapping[str, str | None]:
    """Find the forward node that each backward node belongs to, by ONNX Runtime's naming rules.

    A sum of gradients of a tensor belongs to the node that computes the tensor, whose type it has. The name
    is None for one that belongs to no forward node.
    """
    return {node.name: _owner(node.name, forward) for node in gradient.nodes if node.name not in forward.node}


def with_backward(forward: Problem, gradient: Problem) -> Problem:
    """Charge forward nodes with their backward nodes, and Casts with their gradients.

    Backward nodes that belong to no forward node keep a row of their own among the costs, so that the
    predicted step is the whole step. A forward node whose backward nodes cannot follow it into low precision
    is fixed. `gradient` is the problem of the FP32 gradient graph, with the same options.
    """
    nodes = dict(forward.costs.nodes)
    fixed = dict(forward.fixed)
    for name, owner in owners(forward.view, gradient.view).items():
        cost = gradient.costs.nodes[name]
        if owner is None:
            nodes[name] = replace(cost, low_us=cost.fp32_us, on_tensor_cores=False)
            continue
        nodes[owner] = _together(nodes[owner], cost)
        if owner not in fixed and (why := _obstacle(gradient.view.node[name], gradient)):
            fixed[owner] = Reason.GRADIENT_KERNEL.of(op=gradient.view.node[name].op.label, why=why)
    return replace(
        forward,
        costs=replace(forward.costs, nodes=nodes),
        fixed=fixed,
        cast_factors={
            tensor: 2.0 for tensor in forward.view.tensors if gradient_of(tensor) in gradient.view.tensors
        },
    )


def _owner(name: str, forward: GraphView) -> str | None:
    differentiated = differentiated_node(name)
    if differentiated in forward.node:
        return differentiated
    producer = forward.producer.get(summed_tensor(name) or "")
    return producer.name if producer is not None else None


def _together(one: NodeCost, other: NodeCost) -> NodeCost:
    return replace(
        one,
        fp32_us=one.fp32_us + other.fp32_us,
        low_us=one.low_us + other.low_us,
        on_tensor_cores=one.on_tensor_cores or other.on_tensor_cores,
    )


_OBSTACLES = frozenset({Reason.KERNEL, *REFUSED.values()}) - {Reason.NO_FP32}


def _obstacle(node: OpNode, gradient: Problem) -> str:
    """Say why a backward node cannot compute in low precision, or ``""``."""
    verdict = gradient.fixed.get(node.name)
    if verdict is None or verdict.decided_by not in _OBSTACLES:
        return ""
    view = gradient.view
    computes = any(map(view.is_float32, node.inputs)) and any(map(view.is_float32, node.outputs))
    return verdict.reason if computes else ""
