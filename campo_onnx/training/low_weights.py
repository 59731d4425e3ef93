"""Weights in low precision, made once per update: one Cast of the flat buffer instead of one a weight."""

from copy import deepcopy

import onnx
from onnx import TensorProto, helper

from campo_onnx.builder.graph import Graph
from campo_onnx.errors import UsageError
from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.view import GraphView
from campo_onnx.step import naming as step_naming
from campo_onnx.training.flat_state import ROW, FlatLayout, flat_layout

MASTER, LOW = "master", "low"


def flat_weights(view: GraphView) -> FlatWeights:
    """Find the weights that a session with an update of its own keeps in one buffer.

    UsageError says that the graph updates its weights itself, or gives no gradients: no such session takes
    it.
    """
    gradients = {step_naming.differentiated(name) for name in view.outputs}
    trained = {step_naming.parameter(name) for name in gradients if name is not None}
    shapes = {name: view.tensors[name].shape for name in view.inputs if name in trained}
    sizes = {name: shape for name, shape in shapes.items() if shape is not None}
    if not sizes or any(step_naming.next_value(name) in view.outputs for name in sizes):
        raise UsageError(
            "no weights lie in one buffer",
            why="the graph updates them itself, or no output is called grad.X or scaled_grad.X after an "
            "input param.X",
            remedy="Export the step without an optimizer, or leave out --flat-weights.",
        )
    return _weights_of(flat_layout(sizes))


def _weights_of(layout: FlatLayout) -> FlatWeights:
    return FlatWeights(sizes={name: place.rows * ROW for name, place in layout.slices.items()})


def with_low_weights(model: onnx.ModelProto, layout: FlatLayout) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Let a gradient graph read FP16 weights instead of casting each.

    Each such weight has a further input, whose name is given by parameter, and no Cast. The graph is the
    given one where that would not pay.
    """
    names = {step_naming.parameter(name): name for name in layout.slices}
    casts: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        if node.op_type == "Cast" and not node.domain and node.input[0] in names and _makes_fp16(node):
            casts.setdefault(node.input[0], node)
    outputs = {value.name for value in model.graph.output}
    removable = {weight: node for weight, node in casts.items() if node.output[0] not in outputs}
    if not _weights_of(layout).are_cast_at_once([names[weight] for weight in removable]):
        return model, {}
    changed = deepcopy(model)
    graph, gone = changed.graph, {node.output[0] for node in removable.values()}
    replace_items(graph.node, [n for n in graph.node if not (n.op_type == "Cast" and n.output[0] in gone)])
    replace_items(graph.value_info, [info for info in graph.value_info if info.name not in gone])
    for weight, node in removable.items():
        shape = layout.slices[names[weight]].stored
        graph.input.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT16, list(shape)))
    return changed, {names[weight]: node.output[0] for weight, node in removable.items()}


def cast_model(rows: int) -> onnx.ModelProto:
    """Write the Cast of the flat weights."""
    g = Graph(opset=20)
    weights = g.input(MASTER, int(TensorProto.FLOAT), (rows, ROW))
    return g.model({LOW: g.op("Cast", weights, to=TensorProto.FLOAT16)}, optional_inputs=frozenset())


def _makes_fp16(node: onnx.NodeProto) -> bool:
    return any(a.name == "to" and a.i == TensorProto.FLOAT16 for a in node.attribute)
