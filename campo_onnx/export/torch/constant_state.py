"""State that a traced step reads as a constant, or writes out of sight, though training changes it."""

from collections.abc import Mapping
from typing import Any

import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.origin import origin_of
from campo_onnx.step import naming as step_naming


def refuse_constant_state(
    traced: torch.fx.GraphModule, inputs: Mapping[str, Any], module: torch.nn.Module
) -> None:
    """Refuse a step that reads a weight as a constant, or writes into a constant or a parameter."""
    buffers = {id(buffer) for buffer in module.buffers()}
    names = iter(inputs)
    roots: dict[torch.fx.Node, str] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            if step_naming.is_parameter(name):
                roots[node] = f"the parameter {step_naming.stored(name)!r}"
        elif node.op == "get_attr":
            tensor = getattr(traced, node.target)
            if isinstance(tensor, torch.nn.Parameter) or id(tensor) in buffers:
                raise UnsupportedModelError(
                    f"a parameter or buffer of shape {tuple(tensor.shape)} is read that is not the module's",
                    why="it would become a constant in the graph, which training never changes",
                    remedy="Register it: modules of a list in nn.ModuleList, parameters in nn.ParameterList.",
                )
            roots[node] = f"a tensor of shape {tuple(tensor.shape)} that is not a buffer"
        elif node.op == "call_function":
            _refuse_writing(node, roots)


def _refuse_writing(node: torch.fx.Node, roots: dict[torch.fx.Node, str]) -> None:
    """Follow views of what `roots` has, and refuse an operation that writes into one."""
    if not isinstance(node.target, torch._ops.OpOverload):
        for operand in node.all_input_nodes:  # one of several results
            if operand in roots:
                roots[node] = roots[operand]
        return
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    named = ((a, node.kwargs[a.name]) for a in node.target._schema.arguments if a.name in node.kwargs)
    for argument, value in (*arguments, *named):
        for operand in value if isinstance(value, tuple | list) else (value,):
            if argument.alias_info is None or not isinstance(operand, torch.fx.Node) or operand not in roots:
                continue
            if argument.alias_info.is_write:
                place = origin_of(node).place or str(node.target)
                raise UnsupportedModelError(
                    f"{place} writes into {roots[operand]}",
                    why="a graph would lose that: only buffers keep what forward writes",
                    remedy="Register the tensor with register_buffer, or change parameters between steps.",
                )
            roots[node] = roots[operand]
