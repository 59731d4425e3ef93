"""The gradient of a convolution's weight as a convolution whose kernel is the output's gradient.

Images are summed over, so they are the channels of that convolution; the input's channels stay apart, so
they are its batch. On CUDA they are one more axis that the kernel moves along instead: the input is then read
as it lies. Where the result is too small to fill a device, parts of the images are groups of the convolution,
and their results are summed. A group for each image leaves the gradient as it lies too, but tensor cores
want at least eight images in each, and the results must be few.
"""

import math
from collections.abc import Sequence
from functools import partial

from campo_onnx.builder.compact import full, pad, reduce, reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.lowering.convolutions.form_choice import cheapest
from campo_onnx.lowering.convolutions.patches import Geometry
from campo_onnx.targets.roofline import TILE
from campo_onnx.targets.target import Target

_MOST_AXES = 3
"""Spatial axes that convolutions have kernels for."""


def by_convolution(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry, device: Target
) -> Value:
    """Write the gradient of a weight of `shape`, from what the convolution read and the output's gradient."""
    padded = (
        None
        if g.target != "cuda" or g.sizes_change or len(shape) - 2 == _MOST_AXES
        else _padded(g, x, gradient, shape, geometry)
    )
    if padded is None:
        return swapped_convolution(g, x, gradient, shape, geometry)
    x, pads = padded
    whole = partial(_along_channels, shape=shape, geometry=geometry, pads=pads, parts=x.shape[0])
    if geometry.groups > 1:
        return whole(g, x, gradient)
    forms = {"parts": partial(whole, parts=_parts(shape, x.shape[0], device)), "images": whole}
    return forms[cheapest(g, forms, (x, gradient), device)](g, x, gradient)


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
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry, pads: Sequence[int],
    parts: int,
) -> Value:  # fmt: skip
    """Let the kernel move along the channels as well, one step for each."""
    (batch, _, *size), result = x.shape, gradient.shape[2:]
    outputs, channels = shape[:2]
    apart = reshape(g, gradient, (parts, batch // parts, outputs, *result))
    kernel = transpose(g, apart, [0, 2, 1, *range(3, apart.rank)])
    count = len(size)
    taps = g.op(
        "Conv",
        reshape(g, x, (1, batch * geometry.groups, channels, *size)),
        reshape(g, kernel, (parts * outputs, batch // parts, 1, *result)),
        strides=[1, *geometry.dilations],
        dilations=[1, *geometry.strides],
        pads=[0, *pads[:count], 0, *pads[count:]],
        group=parts * geometry.groups,
    )
    return reduce(g, "ReduceSum", reshape(g, taps, (parts, *shape)), [0], keepdims=False)


def _parts(shape: tuple[int, ...], batch: int, device: Target) -> int:
    """Say in how many parts to convolve the batch, so that a small result fills the device."""
    tiles = math.ceil(math.prod(shape[1:]) / TILE) * math.ceil(shape[0] / TILE)
    parts = 1
    while parts * tiles < device.hardware.sm_count and batch % (2 * parts) == 0:
        parts *= 2
    return parts
