"""The predicted step of a mixed graph as it stands, whoever wrote it."""

from campo_onnx.checking.pairing import Pairing
from campo_onnx.devices.device import Device
from campo_onnx.devices.roofline import copy_us, node_time
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.problem import Problem


def predicted_us(problem: Problem, pairing: Pairing, mixed: GraphView, device: Device) -> float:
    """Predict a step of a mixed graph.

    Every node counts in the precision it has, every Cast, Pad and Slice that is there counts,
    shared or not. For a graph that was made by a plan this is what the plan predicts.

    Parameters
    ----------
    problem
        The FP32 graph with the costs of its nodes.
    pairing
        What was done to it.
    mixed
        The mixed graph.
    device
        What the costs are for.
    """
    costs = problem.costs
    nodes_us = 0.0
    for name, cost in costs.nodes.items():
        if name in pairing.low_nodes:
            nodes_us += cost.low_us * _padding_factor(name, problem, mixed, device)
        elif name not in pairing.gone:
            nodes_us += cost.fp32_us
    casts_us = sum(costs.cast.cast_us(mixed.tensors[cast.inputs[0]].elements or 0) for cast in pairing.casts)
    paddings_us = 0.0
    for node in pairing.paddings:
        source, target = (mixed.tensors[t].nbytes for t in (node.inputs[0], node.outputs[0]))
        # A Slice reads only what it keeps.
        read_bytes = target if node.op == OpKey("", "Slice") else source
        paddings_us += copy_us(read_bytes + target, device)
    return nodes_us + casts_us + paddings_us


def _padding_factor(name: str, problem: Problem, mixed: GraphView, device: Device) -> float:
    """By what padding shortens a product: 1 for a node whose tensors kept their size."""
    node, now = problem.view.node[name], mixed.node[name]
    sizes = [(problem.view.shape(a), mixed.shape(b)) for a, b in zip(node.inputs, now.inputs, strict=True)]
    sizes += [(problem.view.shape(a), mixed.shape(b)) for a, b in zip(node.outputs, now.outputs, strict=True)]
    if all(before == after for before, after in sizes):
        return 1.0
    ports, low = problem.ports[name], problem.low
    kernel_us = node_time(problem.view.signature(name), ports, device, low).time_us
    return node_time(mixed.signature(name), ports, device, low).time_us / kernel_us
