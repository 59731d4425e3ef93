"""The gradient of a max pool whose windows lie side by side, in one pass over memory.

::

    g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] dy) => (float[16] dx)
    <int64[1] long = {-1}>
    {
        y, place = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        dx = ScatterElements (ConstantOfShape (size), Reshape (place, long), Reshape (dy, long))
    }

becomes, on ONNX Runtime's CPU provider, where ScatterElements first writes the zeros that it adds to::

    {
        y, place = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        dx = Reshape (MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (dy, place), long)
    }
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from campo_onnx.builder.compact import reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import CPU
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.importer import Imported
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import rebuilt


def unpooling(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write gradients of max pools as MaxUnpool."""
    if place.operators != CPU:
        return imported.model
    return rebuilt(imported, {"ScatterElements": _unpooled}, place)


def are_tiles(window: Mapping[str, Any], image: Sequence[int]) -> bool:
    """Whether windows lie side by side and cover the image, so that each element is in one of them."""
    sizes = window["kernel_shape"]
    fit = all(n % size == 0 for n, size in zip(image, sizes, strict=True))
    return fit and window["strides"] == sizes and not any(window["pads"]) and set(window["dilations"]) == {1}


def _unpooled(g: Graph, node: Node) -> Value | None:
    zeros, indices, updates = node.inputs
    assert zeros is not None  # the operator's inputs are not optional
    assert indices is not None
    assert updates is not None
    uniform, pool = g.producer(zeros, "ConstantOfShape"), g.source(g.before(indices, "Reshape") or indices)
    if uniform is None or pool is None or pool.op_type != "MaxPool" or node.attributes.get("axis", 0) != 0:
        return None
    value, image, y = uniform.attributes.get("value"), pool.inputs[0], pool.outputs[0]
    is_zero = value is None or not numpy_helper.to_array(value).any()
    count = len(pool.attributes["kernel_shape"])
    ones = [1] * count
    window = {"pads": [0, 0] * count, "dilations": ones, "strides": ones, **pool.attributes}
    if (
        image is None
        or not is_zero
        or zeros.shape != (image.elements,)
        or node.attributes.get("reduction", b"none") not in (b"none", b"add")
        or updates.shape != indices.shape
        or indices.elements != y.elements
        or window.get("auto_pad", b"NOTSET") != b"NOTSET"
        or window.get("storage_order", 0)
        or not are_tiles(window, image.shape[2:])
        or updates.dtype != TensorProto.FLOAT
    ):
        return None
    tiles = {name: window[name] for name in ("kernel_shape", "strides")}
    return reshape(g, g.op("MaxUnpool", reshape(g, updates, y.shape), pool.outputs[1], **tiles), zeros.shape)
