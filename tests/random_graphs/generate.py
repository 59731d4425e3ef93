"""Draws whole graphs: operators by chance, then what graphs of the world have on top."""

import random
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from tests.random_graphs import (
    contrib,
    control,
    elementwise,
    formats,
    layout,
    linear,
    normalization,
    training,
)
from tests.random_graphs.builder import Array, Builder, RandomGraph, RejectedError, captured, dtype_of

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 20, 21, 22, 23)

_WEIGHTS: Mapping[Callable[[Builder], None], int] = {
    elementwise.one: 14,
    elementwise.two: 10,
    elementwise.variadic: 2,
    elementwise.clip: 2,
    elementwise.where: 4,
    elementwise.dropout: 2,
    linear.matmul: 8,
    linear.gemm: 5,
    linear.einsum: 1,
    linear.conv: 4,
    linear.pool: 2,
    linear.recurrent: 2,
    linear.attention: 2,
    linear.rotary: 1,
    normalization.batch: 2,
    normalization.layer: 3,
    normalization.group: 2,
    normalization.rms: 2,
    normalization.simplified: 1,
    normalization.in_pieces: 3,
    layout.transpose: 2,
    layout.reshape: 3,
    layout.squeeze: 2,
    layout.concat: 2,
    layout.slicing: 2,
    layout.pad: 1,
    layout.expand: 2,
    layout.gather: 2,
    layout.scatter: 2,
    layout.select: 3,
    layout.resize: 1,
    layout.depth: 1,
    layout.sequence: 1,
    layout.fill: 3,
    formats.existing_cast: 4,
    formats.through_other_type: 2,
    formats.double: 1,
    formats.cast_like: 1,
    formats.quantized: 2,
    formats.dynamic: 1,
    formats.positions: 2,
    formats.integers: 1,
    control.branch: 2,
    control.loop: 2,
    control.scan: 1,
    training.dense: 5,
    training.loss: 3,
    training.masked_attention: 3,
    training.norm: 2,
    training.update: 2,
    training.embedding: 2,
    training.convolution: 2,
    training.gelu: 2,
    training.scaled_loss: 1,
    training.tiny: 1,
    contrib.activation: 2,
    contrib.fused_matmul: 1,
    contrib.fused_gemm: 1,
    contrib.fused_conv: 1,
    contrib.multi_head: 1,
    contrib.other: 1,
}


def random_graph(seed: int, most_nodes: int = 16) -> RandomGraph:
    """Draw a graph that onnx.checker takes and ONNX Runtime's CPU provider runs.

    Parameters
    ----------
    seed
        The same seed gives the same graph.
    most_nodes
        About as many nodes at the most; one draw may add several.

    Raises
    ------
    RejectedError
        If what was drawn is not such a graph.
    """
    rng = random.Random(seed)
    b = Builder(rng, rng.choice(OPSETS))
    for _ in range(rng.randrange(1, 4)):
        b.input(b.data(b.shape()))
    draws = list(_WEIGHTS)
    wanted, tries = rng.randrange(1, most_nodes + 1), 0
    while sum(node.op_type != "Constant" for node in b.nodes) < wanted and tries < 6 * most_nodes:
        tries += 1
        try:
            rng.choices(draws, list(_WEIGHTS.values()))[0](b)
        except (RejectedError, LookupError, ValueError):
            continue
    model = _finished(b)
    feeds = {name: b[name] for name in b.inputs}
    return RandomGraph(seed=seed, model=model, feeds=feeds, values=dict(b.values))


def _finished(b: Builder) -> ModelProto:
    """Choose outputs, drop what no output needs, and add what graphs of the world have on top."""
    read = {t for node in b.nodes for t in (*node.input, *captured(node))}
    tensors = [t for node in b.nodes for t in node.output if t in b.values]
    if not tensors:
        raise RejectedError("nothing was added")
    outputs = _outputs(b, tensors, read)
    nodes = _needed(b.nodes, outputs) if b.chance(1.2) else b.nodes
    functions = []
    if b.opset >= 15 and b.chance(6):
        functions = _call_functions(b, nodes)
    _name(nodes, b)
    used = {t for node in nodes for t in (*node.input, *captured(node))} | set(outputs)
    weights = [name for name in b.initializers if name in used or b.chance(10)]
    inputs = [b.value_info(name) for name in b.inputs]
    if b.chance(6):  # as IR 3 had to, and some exporters do until today
        inputs += [b.value_info(name) for name in weights if b.chance(2)]
    graph = helper.make_graph(
        nodes,
        "random",
        inputs,
        [b.value_info(name) for name in outputs],
        [numpy_helper.from_array(b[name], name) for name in weights],
    )
    if b.chance(3):
        inner = [t for node in nodes for t in node.output if t in b.values and t not in outputs]
        graph.value_info.extend(b.value_info(t) for t in inner)
    imports = [helper.make_opsetid(b.rng.choice(("", "ai.onnx")) if not functions else "", b.opset)]
    imports.append(helper.make_opsetid("com.microsoft", 1))
    if functions:
        imports.append(helper.make_opsetid("local", 1))
    model = helper.make_model(
        graph, opset_imports=imports, functions=functions, ir_version=b.rng.choice((8, 10))
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise RejectedError(str(error)) from error
    if b.chance(12):
        _shuffle(model, b.rng)
    return model


def _outputs(b: Builder, tensors: Iterable[str], read: set[str]) -> list[str]:
    """Outputs of the graph: tensors that nobody reads, and some that somebody does."""
    may = [t for t in tensors if dtype_of(b[t]) in _MAY_LEAVE]
    outputs = [t for t in may if t not in read or b.chance(8)]
    if not b.chance(10):
        outputs = outputs[-8:]
    elif b.inputs:
        outputs.append(b.rng.choice(b.inputs))
    if b.initializers and b.chance(25):
        outputs.append(b.rng.choice(b.initializers))
    b.rng.shuffle(outputs)
    outputs = list(dict.fromkeys(outputs))
    if not outputs:
        raise RejectedError("nothing leaves the graph")
    return outputs


def _name(nodes: Iterable[NodeProto], b: Builder) -> None:
    """Names as exporters give them, and no names."""
    for number, node in enumerate(nodes):
        node.name = "" if b.chance(4) else b.rng.choice((f"n{number}", f"/layer{number}/{node.op_type}"))


_MAY_LEAVE = frozenset({1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13})


def _needed(nodes: Iterable[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    wanted, kept = set(outputs), []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update((*node.input, *captured(node)))
    return kept[::-1]


def _shuffle(model: ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _call_functions(b: Builder, nodes: list[NodeProto]) -> list[onnx.FunctionProto]:
    """Turn one or two nodes into local functions and calls of them."""
    functions = []
    plain = [i for i, n in enumerate(nodes) if not captured(n) and all(n.input) and all(n.output) and n.input]
    plain = [i for i in plain if not any(a.type == onnx.AttributeProto.GRAPH for a in nodes[i].attribute)]
    for index in b.rng.sample(plain, min(len(plain), b.rng.choice((1, 2)))):
        node = nodes[index]
        name = f"Function{len(functions)}"
        inner = NodeProto()
        inner.CopyFrom(node)
        formal = {t: f"i{i}" for i, t in enumerate(dict.fromkeys(node.input))}
        inner.input[:] = [formal[t] for t in node.input]
        inner.output[:] = [f"o{i}" for i in range(len(node.output))]
        body = [inner]
        if b.chance(2):
            inner.output[0] = "between"
            body.append(helper.make_node("Identity", ["between"], ["o0"]))
        imports = [helper.make_opsetid("", b.opset), helper.make_opsetid("com.microsoft", 1)]
        functions.append(
            helper.make_function(
                "local",
                name,
                list(formal.values()),
                [f"o{i}" for i in range(len(node.output))],
                body,
                imports,
            )
        )
        nodes[index] = helper.make_node(name, list(formal), list(node.output), domain="local")
    return functions


def feeds_for(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Values for the inputs of a model that has some of them or all."""
    wanted = {value.name for value in model.graph.input}
    return {name: np.asarray(value) for name, value in feeds.items() if name in wanted}
