"""Indices that nobody checks before a step runs lead far outside, where a lookup fails.

What a session is fed, it checks (:mod:`campo_onnx.training.index_guard`). It does not see an index that is
computed from other tensors, nor each of several that are merged into one: `x[rows, labels]` would read the
next row for a label that is too large, and ONNX counts a negative index from the end.
"""

from collections.abc import Container, Sequence
from typing import Any

import torch

from campo_onnx.export.torch.indices import (
    MOVES,
    WHOLE,
    IndexUse,
    index_uses,
    is_bounded,
    range_of,
    subscripts,
)
from campo_onnx.export.torch.origin import mark, origin_of
from campo_onnx.ir.walk import Walk
from campo_onnx.step import naming

aten = torch.ops.aten

_FAR = -(2**31)
"""Outside of any axis, and an int32 too."""

_MOST_STEPS = 32

_COPIES = frozenset({aten.alias.default, aten.clone.default, aten.detach.default})

_ALSO_SEEN = frozenset(
    {
        *(aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar),
        *(aten.eq.Tensor, aten.ne.Tensor, aten.logical_and.default, aten.logical_not.default),
    }
)
"""Operations on whole numbers through which a session follows an index, besides those with known ranges."""


def trap_indices(graph: torch.fx.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Let each index of a traced step that may lie outside, and that no session checks, fail where it does.

    `inputs` and `outputs` are the names of the graph's placeholders and results.
    """
    fed, constant = _sources(graph, inputs, outputs)
    traps: dict[tuple[torch.fx.Node, IndexUse], torch.fx.Node] = {}
    for reader, index, use in list(index_uses(graph, lambda node: origin_of(node).is_gradient)):
        sources = _leaves(index, fed | constant)
        is_merged = sum(one is not None for one in subscripts(reader)) > 1
        if sources is not None and (sources <= constant or (sources <= fed and not is_merged)):
            continue
        if (index, use) not in traps:
            traps[index, use] = _trapped(graph, reader, index, use)
        reader.replace_input_with(index, traps[index, use])
    _without_lookups_in_counts(graph)


def _sources(
    graph: torch.fx.Graph, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """Give the placeholders that are fed with each batch, and those of buffers that no step changes."""
    placeholders = dict(zip(inputs, (n for n in graph.nodes if n.op == "placeholder"), strict=True))
    results = dict(zip(outputs, graph.output_node().args[0], strict=True))
    fed = {node for name, node in placeholders.items() if naming.is_batch(name)}
    constant = {
        node
        for name, node in placeholders.items()
        if naming.is_buffer(name) and _origin(results.get(str(naming.next_value(name)), node)) is node
    }
    return fed, constant


def _origin(node: Any) -> Any:
    """Give the tensor that another one is a copy of."""
    while node.target in _COPIES:
        node = node.args[0]
    return node


def _leaves(index: torch.fx.Node, placeholders: Container[torch.fx.Node]) -> set[torch.fx.Node] | None:
    """Give the placeholders that an index is made of in a few steps on whole numbers, else None."""
    walk = Walk([index])
    for node in walk:
        value = node.meta.get("val")
        if len(walk.seen) > _MOST_STEPS or not isinstance(value, torch.Tensor) or value.dtype not in WHOLE:
            return None
        is_followed = node.target in MOVES or node.target in _ALSO_SEEN or is_bounded(node)
        if not (node in placeholders or node.op == "get_attr" or is_followed):
            return None
        walk.add(node.all_input_nodes)
    return {node for node in walk.seen if node.op == "placeholder"}


def _trapped(
    graph: torch.fx.Graph, reader: torch.fx.Node, index: torch.fx.Node, use: IndexUse
) -> torch.fx.Node:
    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with graph.inserting_before(reader):
            node = graph.call_function(target, args, kwargs)
        values = (a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args)
        node.meta["val"] = target(*values, **kwargs)
        mark(node, origin_of(reader))
        return node

    inside = call(aten.eq.Tensor, call(aten.clamp.default, index, use.lowest, use.size - 1), index)
    if use.ignored is not None:
        inside = call(aten.logical_or.default, inside, call(aten.eq.Scalar, index, use.ignored))
    far = call(aten.full.default, [], _FAR, dtype=index.meta["val"].dtype)
    return call(aten.where.self, inside, index, far)


def _without_lookups_in_counts(graph: torch.fx.Graph) -> None:
    """Leave out lookups in 0, 1, 2, ... that a session was to see, of indices that cannot lie outside."""
    for node in list(graph.nodes):
        if node.target is not aten.index_select.default:
            continue
        counts, index = _origin(node.args[0]), node.args[2]
        inside, size = range_of(index), counts.meta["val"].numel()
        is_seen = inside is None or inside.lowest < 0 or inside.highest >= size
        if _is_count(counts) and not is_seen and index.meta["val"].dtype == counts.meta["val"].dtype:
            node.replace_all_uses_with(index)
            graph.erase_node(node)


def _is_count(node: torch.fx.Node) -> bool:
    return node.target is aten.arange.start_step and list(node.args[::2]) in ([0], [0, 1])
