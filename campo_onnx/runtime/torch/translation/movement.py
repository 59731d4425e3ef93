"""Shapes, and operators that move elements without looking at them."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import (
    reshaped,
    reversed_axes,
    shifted,
    slices,
)
from campo_onnx.runtime.torch.translation.node import Node, Row, raw, static
from campo_onnx.runtime.torch.translation.values import Array, dtype_of, ints, sizes_array, to_tensor


def shape_of(node: Node, x: Any) -> Array:
    """Return the sizes of axes, from one axis to another."""
    return sizes_array(x.shape[node.get("start", 0) : node.get("end", sys.maxsize)])


def size_of(node: Node, x: Any) -> Array:
    """Return the number of elements."""
    return sizes_array([math.prod(x.shape)]).reshape(())


def reshape(node: Node, x: Tensor, shape: Array | None = None) -> Tensor:
    """Give the same elements another shape."""
    sizes = reshaped(node, x.shape, shape)
    if any(isinstance(size, int) and size == -1 for size in sizes) and 0 in sizes:
        others = [size for size in sizes if size != -1]
        raise node.refusal(f"no elements do not tell the size that -1 stands for beside {others}")
    return x.reshape(sizes)


def flatten(node: Node, x: Tensor) -> Tensor:
    """Make a matrix: the axes before one are rows."""
    axis = shifted(node.get("axis", 1), x.dim())
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def squeeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    """Leave out axes of one element, or those that are named."""
    named = node.get("axes") if axes is None else ints(axes)
    return x.squeeze() if named is None else x.squeeze([shifted(a, x.dim()) for a in named])


def unsqueeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    """Put in axes of one element."""
    named = node.get("axes") if axes is None else ints(axes)
    rank = x.dim() + len(named)
    for axis in sorted(shifted(a, rank) for a in named):
        x = x.unsqueeze(axis)
    return x


def transpose(node: Node, x: Tensor) -> Tensor:
    """Permute the axes."""
    return x.permute(node.get("perm", reversed_axes(x.dim())))


def concat(node: Node, *inputs: Tensor) -> Tensor:
    """Join tensors along an axis."""
    return torch.cat(inputs, node.get("axis", 1))


def split(node: Node, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    """Cut along an axis, into sizes that are named or into equal pieces, the last one smaller."""
    axis = node.get("axis", 0)
    named = node.get("split") if sizes is None else ints(sizes)
    if named is None:
        count = node.get("num_outputs", len(node.outputs))
        size = -(-x.shape[axis] // count)
        named = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    return tuple(torch.split(x, named, axis))


def slice_(node: Node, x: Tensor, *bounds: Array | None) -> Tensor:
    """Take every so many elements between two, along axes."""
    for axis, first, last, step in slices(node, x.shape, *bounds):
        end = min(last, sys.maxsize) if isinstance(last, int) else last
        x = torch.ops.aten.slice.Tensor(x, axis, first, end, abs(step))
        x = x.flip(axis) if step < 0 else x
    return x


def expand(node: Node, x: Tensor, shape: Array) -> Tensor:
    """Broadcast; where either has an axis of one element, the other's size counts."""
    return x.expand(torch.broadcast_shapes(x.shape, ints(shape)))


def tile(node: Node, x: Tensor, repeats: Array) -> Tensor:
    """Repeat along every axis."""
    return x.repeat(ints(repeats))


def pad(
    node: Node, x: Tensor, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Tensor:
    """Put elements before and after those of axes, or with negative pads take some away."""
    widths = node.get("pads", node.get("paddings")) if pads is None else ints(pads)
    number = node.get("value", 0.0) if value is None else value.item()
    named = range(x.dim()) if axes is None else [shifted(a, x.dim()) for a in ints(axes)]
    return padded(x, dict(zip(named, pairs(widths), strict=True)), node.get("mode", "constant"), number)


def pairs(widths: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pair what pads say of the beginnings of axes with what they say of the ends.

    >>> pairs([1, 2, 3, 4])
    [(1, 3), (2, 4)]
    """
    half = len(widths) // 2
    return list(zip(widths[:half], widths[half:], strict=True))


def padded(x: Tensor, widths: dict[int, tuple[Any, Any]], mode: str, value: Any) -> Tensor:
    """Pad axes by widths at both ends."""
    if mode == "constant":
        flat = [width for axis in reversed(range(x.dim())) for width in widths.get(axis, (0, 0))]
        return torch.ops.aten.constant_pad_nd(x, flat, int(value) if not x.is_floating_point() else value)
    for axis, (before, after) in widths.items():
        if (before, after) != (0, 0):
            x = x.index_select(axis, _sources(mode, before, after, x.shape[axis], x.device))
    return x


def _sources(mode: str, before: Any, after: Any, size: Any, device: torch.device) -> Tensor:
    """Return the elements that a padded axis is made of."""
    places = torch.arange(-before, size + after, device=device)
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places.remainder(size)
    period = max(2 * (size - 1), 1)
    around = places.remainder(period)
    return torch.where(around < size, around, period - around)


def depth_to_space(node: Node, x: Tensor) -> Tensor:
    """Move blocks of channels into space."""
    block, (n, c, h, w) = node.get("blocksize"), x.shape
    if node.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(node: Node, x: Tensor) -> Tensor:
    """Move blocks of space into channels."""
    block, (n, c, h, w) = node.get("blocksize"), x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    """Turn the first elements of each sequence around."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    places = torch.arange(x.shape[time], device=x.device).unsqueeze(1)
    turned = torch.where(places < lengths, lengths - 1 - places, places)
    index = turned if time < batch else turned.t()
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    return torch.gather(x, time, index)


def trilu(node: Node, x: Tensor, diagonal: Array | None = None) -> Tensor:
    """Keep the upper or lower triangle of matrices."""
    offset = 0 if diagonal is None else ints(diagonal)[0]
    return torch.triu(x, offset) if node.flag("upper", True) else torch.tril(x, offset)


def constant_of_shape(node: Node, shape: Array) -> Tensor:
    """Fill a tensor."""
    value = to_tensor(node.get("value", np.zeros(1, np.float32)), torch.device("cpu"))
    return torch.full(ints(shape), value.item(), dtype=value.dtype, device=node.device)


def eye_like(node: Node, x: Tensor) -> Tensor:
    """Fill a diagonal with ones."""
    rows, columns = x.shape
    dtype = dtype_of(node.get("dtype"), f"the node {node.name!r}") if node.get("dtype") else x.dtype
    steps = torch.arange(rows, device=x.device).unsqueeze(1) + node.get("k", 0)
    return steps.eq(torch.arange(columns, device=x.device)).to(dtype)


def arange(node: Node, start: Array, limit: Array, delta: Array) -> Tensor:
    """Count from a number to another one."""
    first, end, step = (value.reshape(-1)[0] for value in (start, limit, delta))
    if start.dtype == object or start.dtype.kind in "iu":
        dtype = torch.int64 if start.dtype == object else to_tensor(start, torch.device("cpu")).dtype
        return torch.arange(first, end, step, device=node.device).to(dtype)
    count = max(math.ceil((float(end) - float(first)) / float(step)), 0)
    steps = torch.arange(count, device=node.device, dtype=torch.float64)
    return (float(first) + steps * float(step)).to(to_tensor(start, torch.device("cpu")).dtype)


ROWS = {
    "Concat": Row(concat),
    "ConstantOfShape": static(0)(constant_of_shape),
    "DepthToSpace": Row(depth_to_space),
    "Expand": static(1)(expand),
    "EyeLike": Row(eye_like),
    "Flatten": Row(flatten),
    "Identity": raw(lambda node, x: x),
    "Pad": static(1, 2, 3)(pad),
    "Range": static(0, 1, 2)(arange),
    "Reshape": static(1)(reshape),
    "ReverseSequence": Row(reverse_sequence),
    "Shape": raw(shape_of),
    "Size": raw(size_of),
    "Slice": static(1, 2, 3, 4)(slice_),
    "SpaceToDepth": Row(space_to_depth),
    "Split": static(1)(split),
    "Squeeze": static(1)(squeeze),
    "Tile": static(1)(tile),
    "Transpose": Row(transpose),
    "Trilu": static(1)(trilu),
    "Unsqueeze": static(1)(unsqueeze),
    "com.microsoft:ExpandDims": static(1)(unsqueeze),
    "com.microsoft:Pad": static(1, 2, 3)(pad),
    "com.microsoft:Range": static(0, 1, 2)(arange),
    "com.microsoft:SplitTraining": static(1)(split),
    "com.microsoft:Trilu": static(1)(trilu),
}
