"""Precision of backward nodes, from that of their forward nodes.

A framework that is handed a forward graph writes the backward one itself, and follows it: gradients
have the type of what they are gradients of, and the gradient of a Cast is a Cast. So a forward node
decides about its backward nodes too, and has to be decided with them.
"""

from collections.abc import Mapping
from dataclasses import replace

from campo_onnx.costs.table import NodeCost
from campo_onnx.ir.gradient_names import differentiated_node, gradient_of, summed_tensor
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.optimize.plan.reason import REFUSED, Reason
from campo_onnx.optimize.problem import Problem


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
