"""Write a precision plan into a graph of aten operations, in place.

A kernel that is low reads low copies, and its results are low. A value that is stored low has one copy, which
everybody reads. Whoever computes in FP32 reads an FP32 version of what is low; Inductor makes that conversion
part of the kernel that reads. What leaves the graph has the type it had.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch.fx.node import map_arg

from campo_onnx.integrations.inductor.library import (
    CONVERT,
    LIBRARY,
    dtype_of,
    is_fp32,
    is_view,
    results_of,
    tensors_of,
)

_OF_ONE_VALUE = ("val", "tensor_meta", "desc", "eager_input_vals")
"""Metadata that a new node does not share with the one that it is made for."""


def execute(
    graph: torch.fx.Graph,
    kernels: Collection[torch.fx.Node],
    stored: Collection[torch.fx.Node],
    dtype: torch.dtype,
) -> None:
    """Let some library kernels compute in a low type, and some values be stored in it alone."""
    writer = _Writer(graph, dtype)
    for node in list(graph.nodes):
        if node in kernels:
            writer.lower(node)
        elif node in stored:
            writer.store_low(node)
    _drop_unused(graph)
    graph.lint()


def _drop_unused(graph: torch.fx.Graph) -> None:
    """Drop conversions and views that nobody reads any more."""
    for node in reversed(list(graph.nodes)):
        if not node.users and (node.target is CONVERT or is_view(node)):
            graph.erase_node(node)


class _Writer:
    """Adds conversions, each behind the value that it converts, so that all readers share it."""

    def __init__(self, graph: torch.fx.Graph, dtype: torch.dtype) -> None:
        self._graph, self._dtype = graph, dtype
        self._low: dict[torch.fx.Node, torch.fx.Node] = {}
        """The low copy of each FP32 value that has one."""
        self._last_input = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)

    def lower(self, node: torch.fx.Node) -> None:
        """Let a library kernel read and write the low type."""
        stays = LIBRARY[node.target]

        def low(operand: torch.fx.Node) -> torch.fx.Node:
            return self._low_copy(operand) if is_fp32(operand) else operand

        node.args = tuple(a if i in stays else map_arg(a, low) for i, a in enumerate(node.args))
        node.kwargs = {k: a if k in stays else map_arg(a, low) for k, a in node.kwargs.items()}
        before = [t.dtype for t in tensors_of(node)]
        node.meta["val"] = _run(node.target, node.args, node.kwargs)
        node.meta.pop("tensor_meta", None)
        if before == [t.dtype for t in tensors_of(node)]:
            return
        for result in results_of(node):
            if result is not node:
                result.meta["val"] = node.meta["val"][result.args[1]]
                result.meta.pop("tensor_meta", None)
            if dtype_of(result) == self._dtype:
                self._widen(result, result)

    def store_low(self, node: torch.fx.Node) -> None:
        """Let a value be stored low, and everybody read that copy."""
        copy = self._low_copy(node)
        wide = self._widen(node, copy)
        self._low[wide] = copy

    def _widen(self, node: torch.fx.Node, low: torch.fx.Node) -> torch.fx.Node:
        """Let everybody who reads a node read an FP32 version of something low instead."""
        wide = self._added(low, CONVERT, (low, torch.float32), {}, low.meta)
        node.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide and user is not low)
        self._low[wide] = low
        return wide

    def _low_copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node not in self._low:
            if is_view(node):
                source: Any = node.args[0]
                args = (self._low_copy(source), *node.args[1:])
                self._low[node] = self._added(node, node.target, args, node.kwargs, node.meta)
            else:
                self._low[node] = self._added(node, CONVERT, (node, self._dtype), {}, node.meta)
        return self._low[node]

    def _added(self, after: torch.fx.Node, target: Any, args: Any, kwargs: Any, meta: Any) -> torch.fx.Node:
        is_input = after.op == "placeholder"
        with self._graph.inserting_after(self._last_input if is_input else after):
            new = self._graph.call_function(target, args, dict(kwargs))
        new.meta = {} if is_input else {k: v for k, v in meta.items() if k not in _OF_ONE_VALUE}
        new.meta["val"] = _run(target, args, kwargs)
        return new


def _run(target: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on traced values: it tells types, sizes and strides of all its results."""
    args, kwargs = map_arg((args, dict(kwargs)), lambda node: node.meta["val"])
    return target(*args, **kwargs)
