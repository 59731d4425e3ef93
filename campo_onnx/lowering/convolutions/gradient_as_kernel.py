"""The gradient of a convolution's weight as a convolution whose kernel is the output's gradient.

Images are summed over, so they are the channels of that convolution; the input's channels stay apart, so
they are its batch. On CUDA, where the convolution has groups, the channels of each are one more axis that the
kernel moves along instead, with a group for each image: both tensors are read as they lie.
"""

from collections.abc import Sequence

from campo_onnx.builder.compact import full, pad, reduce, reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import CUDA
from campo_onnx.builder.value import Value
from campo_onnx.lowering.convolutions.patches import Geometry

_MOST_AXES = 3
"""Spatial axes that convolutions have kernels for."""


def by_convolution(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry) -> Value:
    """Write the gradient of a weight of `shape`, from what the convolution read and the output's gradient."""
    moves_along = g.target == CUDA and geometry.groups > 1 and len(shape) - 2 < _MOST_AXES
    padded = _padded(g, x, gradient, shape, geometry) if moves_along and not g.sizes_change else None
    if padded is None:
        return swapped_convolution(g, x, gradient, shape, geometry)
    return _along_channels(g, padded[0], gradient, shape, geometry, padded[1])


def _padded(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry
) -> tuple[Value, list[int]] | None:
    """Give the input without what no stride reached, and how to pad it; None where taps read only padding."""
    # The end is padded, or cropped where no stride reached, so that as many taps come out as there are.
    ends = [
        (k - 1) * d + (o - 1) * s + 1 - n - p
        for k, d, o, s, n, p in zip(
            shape[2:], geometry.dilations, gradient.shape[2:], geometry.strides, x.shape[2:], geometry.pads,
            strict=True,
        )
    ]  # fmt: skip
    if any(n + end <= 0 for n, end in zip(x.shape[2:], ends, strict=True)):
        return None
    x = pad(g, x, (0,) * x.rank, (0, 0, *(min(0, end) for end in ends)))
    return x, [*geometry.pads, *(max(0, end) for end in ends)]


def swapped_convolution(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry
) -> Value:
    """Write it with batch and channels swapped; stride and dilation swap as well."""
    padded = _padded(g, x, gradient, shape, geometry)
    if padded is None:
        return full(g, shape, 0, x.dtype)
    x, pads = padded
    groups, (batch, channels, *size) = geometry.groups, x.shape
    axes = range(2, x.rank)
    if groups > 1:
        split = reshape(g, x, (batch, groups, channels // groups, *size))
        turned = transpose(g, split, [2, 1, 0, *(axis + 1 for axis in axes)])
        images = reshape(g, turned, (channels // groups, groups * batch, *size))
    else:
        images = transpose(g, x, [1, 0, *axes])
    taps = g.op(
        "Conv",
        images,
        transpose(g, gradient, [1, 0, *axes]),
        strides=list(geometry.dilations),
        dilations=list(geometry.strides),
        pads=pads,
        group=groups,
    )
    return transpose(g, taps, [1, 0, *axes])


def _along_channels(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry, pads: Sequence[int]
) -> Value:
    """Let the kernel move along the channels of each group as well, one step for each."""
    (batch, _, *size), result = x.shape, gradient.shape[2:]
    count = len(size)
    taps = g.op(
        "Conv",
        reshape(g, x, (1, batch * geometry.groups, shape[1], *size)),
        reshape(g, gradient, (batch * shape[0], 1, 1, *result)),
        strides=[1, *geometry.dilations],
        dilations=[1, *geometry.strides],
        pads=[0, *pads[:count], 0, *pads[count:]],
        group=batch * geometry.groups,
    )
    return reduce(g, "ReduceSum", reshape(g, taps, (batch, *shape)), [0], keepdims=False)
