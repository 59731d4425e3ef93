"""Max pools whose kernel in ONNX Runtime's CPU provider is slow where it is asked for places as well.

Without places it takes a twelfth of the time. For windows of two by two that lie side by side, the places
follow from comparing each element with the largest of its window, in eight passes that take half as long:
they are marked by how far they are from the end, and of several the first has the largest mark.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from campo_onnx.ir.sort import name_nodes, tensor_names
from campo_onnx.ir.view import GraphView, OpNode

_ELEMENTS = 1 << 16
"""So many elements it takes until threads are worth their while."""

_WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
_OTHERS: Mapping[str, Any] = {"pads": [0, 0, 0, 0], "dilations": [1, 1], "ceil_mode": 0, "storage_order": 0}
_RESIZE_OPSET = 13
"""From here on Resize has the form that is written."""

_EXACT = 1 << 24
"""Integers up to here are FP32 numbers."""

_WIDEST = 1024
"""Elements of a row. From 2,032 on ONNX Runtime has another kernel without places: to it the largest of minus
infinities is the lowest number, and that of NaN too, so that an overflow would go unnoticed."""


def with_compared_places(model: onnx.ModelProto, view: GraphView) -> onnx.ModelProto:
    """Write out how the places of maxima are found, where that is faster on a CPU."""
    pools = {node.name for node in view.nodes if node.op.label == "MaxPool" and _is_slow(node, view)}
    if not pools or view.opset[""] < _RESIZE_OPSET:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    taken = tensor_names(changed.graph)
    nodes: list[NodeProto] = []
    for node in changed.graph.node:
        if node.name in pools:
            stem = node.name
            while any(name.startswith(f"{stem}/") for name in taken):
                stem += "_"
            # What it reads may be called otherwise in the model than in the view: a weight in another order.
            shape = view.shape(view.node[node.name].inputs[0]) or ()
            nodes += _compared(node, stem, shape, changed.graph.initializer)
        else:
            nodes.append(node)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    name_nodes(changed.graph)
    return changed


def _is_slow(node: OpNode, view: GraphView) -> bool:
    shape = view.shape(node.inputs[0]) or ()
    attributes = {**_OTHERS, **node.attributes}
    return (
        len(node.outputs) == 2
        and "" not in node.outputs
        and view.is_float32(node.inputs[0])
        and len(shape) == 4
        and shape[2] % 2 == shape[3] % 2 == 0
        and shape[3] <= _WIDEST
        and math.prod(shape) >= _ELEMENTS
        and shape[2] * shape[3] < _EXACT
        and attributes == {**_OTHERS, **_WINDOW}
    )


def _compared(pool: NodeProto, stem: str, shape: Sequence[int], constants: Any) -> list[NodeProto]:
    x, (y, place) = pool.input[0], pool.output
    images, size = shape[0] * shape[1], shape[2] * shape[3]
    ends = np.arange(size - 1, images * size, size, dtype=np.int64).reshape(*shape[:2], 1, 1)
    marks = np.arange(size - 1, -1, -1, dtype=np.float32).reshape(1, 1, *shape[2:])
    scales = np.asarray([1, 1, 2, 2], np.float32)

    def constant(kind: str, array: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(array, f"{stem}/{kind}"))
        return f"{stem}/{kind}"

    def made(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op_type, inputs, [output], **attributes)

    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return [
        made("MaxPool", [x], y, **_WINDOW),
        made("Resize", [y, "", constant("scales", scales)], f"{stem}/largest", **nearest),
        made("Equal", [x, f"{stem}/largest"], f"{stem}/is_largest"),
        made("Cast", [f"{stem}/is_largest"], f"{stem}/one", to=TensorProto.FLOAT),
        made("Mul", [f"{stem}/one", constant("marks", marks)], f"{stem}/mark"),
        made("MaxPool", [f"{stem}/mark"], f"{stem}/first", **_WINDOW),
        made("Cast", [f"{stem}/first"], f"{stem}/before_end", to=TensorProto.INT64),
        made("Sub", [constant("ends", ends), f"{stem}/before_end"], place),
    ]
