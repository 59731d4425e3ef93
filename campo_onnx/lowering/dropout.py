"""Dropout by uniform random numbers where the target has no kernel of Dropout in training.

OpenVINO refuses its training mode; ONNX Runtime's CUDA provider has no kernel of it from opset 22 on::

    g (float[2, 3] x, float ratio, bool training) => (float[2, 3] y, bool[2, 3] mask)
    { y, mask = Dropout (x, ratio, training) }

becomes, where `ratio` is the constant 0.2 and `training` is true::

    g (float[2, 3] x) => (float[2, 3] y, bool[2, 3] mask)
    <float ratio = {0.2}, float zero = {0.0}, float scale = {1.25}>
    {
        uniform = RandomUniform <shape = [2, 3]> ()
        mask = GreaterOrEqual (uniform, ratio)
        selected = Where (mask, x, zero)
        y = Mul (selected, scale)
    }

Other numbers are drawn than by Dropout, with the same distribution.
"""

import numpy as np
import onnx
from onnx import TensorProto

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced
from campo_onnx.lowering.place import Place

_RATIO, _TRAINING = 1, 2


def dropout(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write dropout in training as random numbers, a comparison and a product."""
    view = imported.view
    nodes = (node for node in view.nodes if node.op.label == "Dropout" and _is_training(node, view))
    refused = [node for node in nodes if not place.runs(view.signature(node.name))]
    return replaced(imported, refused, lambda edit, node: _draw(edit, node, view))


def _is_training(node: OpNode, view: GraphView) -> bool:
    if len(node.inputs) <= _TRAINING:
        return False
    training = view.values.get(node.inputs[_TRAINING])
    is_constant = not node.inputs[_RATIO] or node.inputs[_RATIO] in view.values
    has_shape = bool(view.shape(node.inputs[0])) and view.is_float32(node.inputs[0])
    return training is not None and bool(training) and is_constant and has_shape and _ratio(node, view) < 1


def _ratio(node: OpNode, view: GraphView) -> float:
    return float(view.values[node.inputs[_RATIO]].item()) if node.inputs[_RATIO] else 0.5


def _draw(edit: Edit, node: OpNode, view: GraphView) -> None:
    x, y, ratio = node.inputs[0], node.outputs[0], _ratio(node, view)
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    settings = {"shape": list(view.shape(x) or ()), "dtype": TensorProto.FLOAT}
    if "seed" in node.attributes:
        settings["seed"] = float(node.attributes["seed"])
    uniform = edit.op("RandomUniform", output="", **settings)
    bound = edit.constant(np.asarray(ratio, np.float32), "ratio")
    mask = edit.op("GreaterOrEqual", uniform, bound, output=mask)
    selected = edit.op("Where", mask, x, edit.constant(np.zeros((), np.float32), "zero"))
    scale = edit.constant(np.asarray(1 / (1 - ratio), np.float32), "scale")
    edit.op("Mul", selected, scale, output=y)
