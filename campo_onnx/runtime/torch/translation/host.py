"""Arithmetic on shapes, axes and other small arrays, which have to be known while a graph is traced.

Arrays of sizes with names have objects for elements. A function returns None where the result is left to
torch: it would be large, or of a type that such objects do not have.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation.axes import reduced_axes, reshaped, reversed_axes, slices
from campo_onnx.runtime.torch.translation.node import Node
from campo_onnx.runtime.torch.translation.values import Array, ints, is_known_size

_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64})


def cast(node: Node, x: Array) -> Array | None:
    """Convert; sizes with names stay integers."""
    to = node.get("to")
    if x.dtype == object:
        return x if to in _INTEGERS else None
    if to not in helper.get_all_tensor_dtypes() or to == TensorProto.STRING:
        return None
    return x.astype(helper.tensor_dtype_to_np_dtype(to))


def div(node: Node, x: Array, y: Array) -> Array:
    """Divide; integers are rounded towards zero."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    quotient = np.abs(x) // np.abs(y)
    return np.asarray(np.where((x < 0) != (y < 0), -quotient, quotient))


def mod(node: Node, x: Array, y: Array) -> Array | None:
    """Return the remainder of the divisor's sign; that of the dividend's is left to torch."""
    return None if node.flag("fmod") else np.asarray(x % y)


def gather(node: Node, x: Array, indices: Array) -> Array:
    """Take elements along an axis."""
    return np.asarray(np.take(x, indices.astype(np.int64), node.get("axis", 0)))


def concat(node: Node, *arrays: Array) -> Array | None:
    """Join arrays."""
    kind = object if any(array.dtype == object for array in arrays) else arrays[0].dtype
    return np.concatenate([array.astype(kind) for array in arrays], node.get("axis", 0))


def constant_of_shape(node: Node, shape: Array) -> Array | None:
    """Fill an array."""
    sizes = ints(shape)
    value = node.get("value", np.zeros(1, np.float32))
    return np.full(sizes, value[0]) if is_known_size(sizes) else None


def expand(node: Node, x: Array, shape: Array) -> Array | None:
    """Broadcast."""
    sizes = ints(shape)
    if not is_known_size(sizes):
        return None
    broadcast = np.broadcast_shapes(x.shape, tuple(sizes))
    return np.broadcast_to(x, broadcast).copy() if is_known_size(broadcast) else None


def arange(node: Node, start: Array, limit: Array, delta: Array) -> Array | None:
    """Count from a number to another one."""
    if object in (start.dtype, limit.dtype, delta.dtype):
        return None
    counted = np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)
    return counted if is_known_size(counted.shape) else None


def reduced(function: Callable[..., Any]) -> Callable[..., Array | None]:
    """Reduce with a function of numpy's."""

    def compute(node: Node, x: Array, axes: Array | None = None) -> Array | None:
        if x.dtype.kind not in "iO":
            return None
        over = reduced_axes(node, axes, x.ndim)
        if over is None:
            return x
        result = function(x, axis=tuple(over), keepdims=node.flag("keepdims", True))
        return np.asarray(result, x.dtype)

    return compute


def transposed(node: Node, x: Array) -> Array:
    """Permute the axes."""
    return x.transpose(node.get("perm", reversed_axes(x.ndim)))


def reshape(node: Node, x: Array, shape: Array | None = None) -> Array | None:
    """Give the same elements another shape."""
    sizes = reshaped(node, x.shape, shape)
    return x.reshape(sizes) if is_known_size(sizes) else None


def squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    """Leave out axes of one element, or those that are named."""
    over = reduced_axes(node, axes, x.ndim)
    return x.squeeze(None if axes is None and node.get("axes") is None else tuple(over or ()))


def unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    """Put in axes of one element."""
    return np.expand_dims(x, tuple(ints(axes) if axes is not None else node.get("axes")))


def sliced(node: Node, x: Array, *bounds: Array | None) -> Array:
    """Take every so many elements between two, along axes."""
    for axis, first, last, step in slices(node, x.shape, *bounds):
        x = x[(slice(None),) * axis + (slice(first, last, abs(step)),)]
        x = np.flip(x, axis) if step < 0 else x
    return x


def _pair(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda node, *arrays: np.asarray(function(*arrays))


def _folded(function: Callable[..., Any]) -> Callable[..., Array]:
    def compute(node: Node, *arrays: Array) -> Array:
        result = arrays[0]
        for array in arrays[1:]:
            result = np.asarray(function(result, array))
        return result

    return compute


_FUNCTIONS: Mapping[str, Callable[..., Array | None]] = {
    "Abs": _pair(np.abs),
    "Add": _pair(np.add),
    "And": _pair(np.logical_and),
    "Cast": cast,
    "Ceil": _pair(np.ceil),
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Div": div,
    "Equal": _pair(np.equal),
    "Expand": expand,
    "Floor": _pair(np.floor),
    "Gather": gather,
    "Greater": _pair(np.greater),
    "GreaterOrEqual": _pair(np.greater_equal),
    "Identity": _pair(lambda x: x),
    "Less": _pair(np.less),
    "LessOrEqual": _pair(np.less_equal),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Mod": mod,
    "Mul": _pair(np.multiply),
    "Neg": _pair(np.negative),
    "Not": _pair(np.logical_not),
    "Or": _pair(np.logical_or),
    "Range": arange,
    "ReduceMax": reduced(np.max),
    "ReduceMin": reduced(np.min),
    "ReduceProd": reduced(np.prod),
    "ReduceSum": reduced(np.sum),
    "Reshape": reshape,
    "Slice": sliced,
    "Squeeze": squeeze,
    "Sub": _pair(np.subtract),
    "Transpose": transposed,
    "Unsqueeze": unsqueeze,
    "Where": _pair(np.where),
}

HOST = MappingProxyType({OpKey("", op_type): function for op_type, function in _FUNCTIONS.items()})
