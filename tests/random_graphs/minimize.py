"""Makes a graph that breaks an oracle small: nodes are dropped as long as it still does."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, helper

from campo_onnx.ir.sort import name_nodes, sort_nodes
from tests.random_graphs.builder import LARGEST, SMALLEST, Array, RandomGraph, captured, dtype_of

_MAY_BE_INPUT = frozenset({1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13})


def minimized(graph: RandomGraph, is_broken: Callable[[RandomGraph], bool]) -> RandomGraph:
    """Drop nodes of a graph, one output at a time and then one node at a time.

    What a dropped node made becomes an input of the graph, with the value it had.

    Parameters
    ----------
    graph
        A graph for which `is_broken` holds.
    is_broken
        Whether the fault that is looked for is still there.
    """
    best = _if_broken(graph, _inlined(graph), is_broken)
    for value in list(best.model.graph.output):
        if len(best.model.graph.output) > 1:
            outputs = [v.name for v in best.model.graph.output if v.name != value.name]
            best = _if_broken(best, _reduced(best, list(best.model.graph.node), outputs), is_broken)
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for node in reversed(list(best.model.graph.node)):
            kept = [n for n in best.model.graph.node if n.output != node.output]
            if len(kept) == len(best.model.graph.node) or not kept:
                continue
            outputs = [v.name for v in best.model.graph.output if v.name not in node.output]
            attempt = _reduced(best, kept, outputs or _unread(kept, best))
            smaller = _if_broken(best, attempt, is_broken)
            is_smaller |= smaller is not best
            best = smaller
    return best


def _inlined(graph: RandomGraph) -> RandomGraph:
    model = onnx.inliner.inline_local_functions(graph.model)
    name_nodes(model.graph)
    sort_nodes(model.graph)
    return replace(graph, model=model)


def _if_broken(
    best: RandomGraph, attempt: RandomGraph | None, is_broken: Callable[[RandomGraph], bool]
) -> RandomGraph:
    try:
        return attempt if attempt is not None and is_broken(attempt) else best
    except Exception:  # whatever breaks now is another fault
        return best


def _unread(nodes: list[NodeProto], graph: RandomGraph) -> list[str]:
    read = {t for node in nodes for t in (*node.input, *captured(node))}
    return [t for node in nodes for t in node.output if t and t not in read and t in graph.values]


def _reduced(graph: RandomGraph, nodes: list[NodeProto], outputs: list[str]) -> RandomGraph | None:
    original = graph.model.graph
    values = graph.values
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(t for t in (*node.input, *captured(node)) if t)
    computed = {t for node in kept for t in node.output}
    stored = {tensor.name for tensor in original.initializer}
    missing = sorted(t for t in wanted if t not in computed and t not in stored)
    if not kept or any(
        t not in values or dtype_of(values[t]) not in _MAY_BE_INPUT for t in (*missing, *outputs)
    ):
        return None
    if any(t not in graph.feeds and _is_wild(values[t]) for t in missing):
        return None
    model = ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend(kept[::-1])
    also_inputs = [v for v in original.input if v.name in stored and v.name in wanted]
    model.graph.input.extend([*(_info(t, values[t]) for t in missing), *also_inputs])
    model.graph.output.extend(_info(t, values[t]) for t in outputs)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in wanted]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    feeds = {name: values[name] for name in missing}
    return replace(graph, model=model, feeds=feeds)


def _info(name: str, value: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype_of(value), value.shape)


def _is_wild(value: Array) -> bool:
    """Whether the graph tells something of these values that an input would not."""
    if value.dtype.kind != "f" or not value.size:
        return False
    largest = float(np.abs(value).max())
    whole_numbers = largest > 255 and bool((value == np.round(value)).all())
    return whole_numbers or not (largest == 0 or SMALLEST <= largest <= LARGEST)
