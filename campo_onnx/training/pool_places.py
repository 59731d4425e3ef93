"""Max pools whose kernel in ONNX Runtime's CPU provider is slow where it is asked for places as well.

Without places it takes a twelfth of the time. For windows of two by two that lie side by side, the places
follow from comparing each element with the largest of its window, in eight passes that take half as long:
they are marked by how far they are from the end, and of several the first has the largest mark.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced

_ELEMENTS = 1 << 16
"""So many elements it takes until threads are worth their while."""

_WINDOW: Mapping[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
_OTHERS: Mapping[str, Any] = {"pads": [0, 0, 0, 0], "dilations": [1, 1], "ceil_mode": 0, "storage_order": 0}
_EXACT = 1 << 24
"""Integers up to here are FP32 numbers."""

_WIDEST = 1024
"""Elements of a row. From 2,032 on ONNX Runtime has another kernel without places: to it the largest of minus
infinities is the lowest number, and that of NaN too, so that an overflow would go unnoticed."""


def with_compared_places(imported: Imported) -> onnx.ModelProto:
    """Write out how the places of maxima are found, where that is faster on a CPU."""
    view = imported.view
    pools = [node for node in view.nodes if node.op.label == "MaxPool" and _is_slow(node, view)]
    return replaced(imported, pools, lambda edit, pool: _compared(edit, pool, view))


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


def _compared(edit: Edit, pool: OpNode, view: GraphView) -> None:
    x, (y, place), shape = pool.inputs[0], pool.outputs, view.shape(pool.inputs[0]) or ()
    images, size = shape[0] * shape[1], shape[2] * shape[3]
    ends = np.arange(size - 1, images * size, size, dtype=np.int64).reshape(*shape[:2], 1, 1)
    marks = np.arange(size - 1, -1, -1, dtype=np.float32).reshape(1, 1, *shape[2:])
    scales = edit.constant(np.asarray([1, 1, 2, 2], np.float32), "scales")
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    edit.op("MaxPool", x, output=y, **_WINDOW)
    largest = edit.op("Resize", y, "", scales, **nearest)
    is_largest = edit.op("Cast", edit.op("Equal", x, largest), to=TensorProto.FLOAT)
    mark = edit.op("Mul", is_largest, edit.constant(marks, "marks"))
    before_end = edit.op("Cast", edit.op("MaxPool", mark, **_WINDOW), to=TensorProto.INT64)
    edit.op("Sub", edit.constant(ends, "ends"), before_end, output=place)
