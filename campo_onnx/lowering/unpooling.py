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

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from campo_onnx.builder.compact import full, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.importer import Imported
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import rebuilt


def unpooling(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write gradients of max pools as MaxUnpool.

    Parameters
    ----------
    imported
        The graph; not changed.
    place
        Where it is to run.
    """
    if place.operators != "cpu":
        return imported.model
    return rebuilt(imported, {"ScatterElements": _unpooled}, place.operators)


def pool_gradient(
    g: Graph, gradient: Value, place: Value, window: Mapping[str, Any], shape: Sequence[int]
) -> Value:
    """Put gradients where the largest elements of windows were, in the form for the target of the graph.

    Parameters
    ----------
    g
        The graph.
    gradient
        Of what the pool gave.
    place
        Which elements of the whole image these were.
    window
        Attributes of the pool.
    shape
        Of the image.
    """
    tiled = are_tiles(window, shape[2:])
    if g.target == "cpu" and tiled and gradient.dtype != TensorProto.DOUBLE:  # its kernel takes no doubles
        return g.op("MaxUnpool", gradient, place, **{n: window[n] for n in ("kernel_shape", "strides")})
    zeros = full(g, (int(np.prod(shape)),), 0, gradient.dtype)
    flat, source = (reshape(g, value, (value.elements,)) for value in (place, gradient))
    # Where no two gradients meet in a place, a GPU need not add them atomically.
    reduction = None if tiled else "add"
    return reshape(g, g.op("ScatterElements", zeros, flat, source, axis=0, reduction=reduction), shape)


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
    uniform, pool = g.producer(zeros, "ConstantOfShape"), g.source(_before_reshape(g, indices))
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
    gradient = reshape(g, updates, y.shape)
    return reshape(g, pool_gradient(g, gradient, pool.outputs[1], window, image.shape), zeros.shape)


def _before_reshape(g: Graph, x: Value) -> Value:
    made = g.producer(x, "Reshape")
    return x if made is None or made.inputs[0] is None else made.inputs[0]
