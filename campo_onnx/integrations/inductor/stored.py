"""Find what is stored between the kernels of a graph, as far as the graph tells before it is scheduled.

Library kernels are where values must lie in memory. Two generated operations may be one kernel if no library
kernel lies between them and both are in the same pass; that is a guess at Inductor's schedule. Values that no
library kernel reads or writes stay FP32, and are not looked at.
"""

import operator
from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import torch

from campo_onnx.integrations.inductor.choice import Choices, KernelTime, StoredValue
from campo_onnx.integrations.inductor.library import (
    LIBRARY,
    is_fp32,
    is_view,
    operands,
    source_of,
    tensors_of,
)
from campo_onnx.integrations.inductor.times import Times, hints

_ITEM = operator.getitem
_COPY = torch.ops.aten.copy_.default
"""Hands a new value to the caller, whose tensor it writes over."""

Group = tuple[object, int]
"""Place at which a generated operation may be fused: its pass, and how many library kernels lie before it."""


def choices_of(
    graph: torch.fx.Graph,
    kernels: Collection[torch.fx.Node],
    storable: Collection[torch.fx.Node],
    dtype: torch.dtype,
    times: Times,
    *,
    channels_last: bool,
) -> Choices:
    """State what is to be decided about.

    `kernels`: library kernels that may be low; `storable`: operations whose results may be stored low.
    """
    groups = _groups(graph)
    measured: Mapping[str, KernelTime] = {
        node.name: KernelTime(fp32_us=pair.fp32_us, low_us=pair.low_us)
        for node in kernels
        for pair in (times.kernel(node, dtype, channels_last=channels_last),)
    }
    uses = _uses(graph)
    values = [
        value
        for node in graph.nodes
        if (value := _value(node, uses.get(node, {}), kernels, node in storable, groups, dtype, times))
    ]
    return Choices(kernels=measured, values=values)


def _groups(graph: torch.fx.Graph) -> Mapping[torch.fx.Node, Group]:
    depth: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        before = max((depth[n] for n in node.all_input_nodes), default=0)
        depth[node] = before + (node.target in LIBRARY)
    return {node: (node.meta.get("partitioner_tag"), depth[node]) for node in graph.nodes}


def _uses(graph: torch.fx.Graph) -> Mapping[torch.fx.Node, Mapping[torch.fx.Node, bool]]:
    """Give by value who reads it, through views or not, and whether it would be read low by a low reader."""
    uses: dict[torch.fx.Node, dict[torch.fx.Node, bool]] = {}
    for node in graph.nodes:
        if is_view(node):
            continue
        read = operands(node) if node.op != "output" else ((n, False) for n in node.all_input_nodes)
        for operand, becomes_low in read:
            of_source = uses.setdefault(source_of(operand), {})
            of_source[node] = becomes_low and of_source.get(node, True)
    return uses


def _value(
    node: torch.fx.Node,
    uses: Mapping[torch.fx.Node, bool],
    kernels: Collection[torch.fx.Node],
    is_storable: bool,
    groups: Mapping[torch.fx.Node, Group],
    dtype: torch.dtype,
    times: Times,
) -> StoredValue | None:
    """Describe what a node gives; None if no library kernel that may be low has to do with it."""
    if not is_fp32(node) or is_view(node):
        return None
    producer: Any = node.args[0] if node.op == "call_function" and node.target is _ITEM else node
    readers = tuple(user.name for user, becomes_low in uses.items() if becomes_low and user in kernels)
    if not readers and producer not in kernels:
        return None
    generated = {groups[u] for u in uses if u.op == "call_function" and u.target not in LIBRARY}
    is_needed = any(user.op == "output" or user.target is _COPY for user in uses) or any(
        user.target in LIBRARY and (user not in kernels or not becomes_low)
        for user, becomes_low in uses.items()
    )
    is_generated = node.op == "call_function" and producer.target not in LIBRARY
    if is_generated:
        generated.discard(groups[node])
    (tensor,) = tensors_of(node)
    return StoredValue(
        name=node.name,
        cast_us=times.cast_us(prod(hints(tensor.shape)), tensor.device, dtype),
        writer=producer.name if producer in kernels else None,
        is_generated=is_generated,
        readers=readers,
        groups=len(generated),
        is_needed_in_fp32=is_needed,
        may_be_low=is_storable and is_generated and bool(readers and generated) and not is_needed,
    )
