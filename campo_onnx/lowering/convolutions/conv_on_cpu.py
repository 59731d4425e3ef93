"""Convolutions and their gradients for ONNX Runtime's CPU provider, in several forms.

Its kernel of a convolution multiplies image by image, one thread for all of them where an image has fewer
positions than the kernel has filters, and that of a transposed one adds up its results on one thread. A
product of the whole batch has neither limit. The forms, of which :func:`cheapest` chooses for each layer:

- ``"conv"``, ``"transpose"``: the operator itself.
- ``"flipped"``: the gradient of the input as a convolution with the kernel turned round.
- ``"patches"``: what the taps see of each position, gathered, times the weight.
- ``"spread"``: each position times the weight, and what reaches a pixel gathered and summed: the fewest
  operations where the strides are not one.
- ``"selected"``: the last two for small images: what would be gathered is a product with zeros and ones.
- ``"product"``: with one tap, the weight times the image as it lies.
"""

import math
from functools import partial

import numpy as np

from campo_onnx.builder.compact import pad, reduce, reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import gemm, matmul
from campo_onnx.builder.value import Value
from campo_onnx.lowering.convolutions.form_choice import Form, cheapest
from campo_onnx.lowering.convolutions.patches import (
    LARGEST_INDEX,
    Axis,
    Geometry,
    axes_of,
    columns_swapped,
    flat_images,
    is_small,
    seen,
    selected,
    selection,
)
from campo_onnx.targets.target import Target


def forward(
    g: Graph, x: Value, weight: Value, bias: Value | None, geometry: Geometry, result: tuple[int, ...],
    target: Target,
) -> Value:  # fmt: skip
    """Convolve an image into one of shape `result`."""
    forms = forward_forms(x.shape, weight.shape, geometry, result)
    return forms[cheapest(g, forms, (x, weight), target)](g, x, weight, bias)


def transposed(
    g: Graph, gradient: Value, weight: Value, bias: Value | None, geometry: Geometry, shape: tuple[int, ...],
    target: Target,
) -> Value:  # fmt: skip
    """Give the gradient of what was convolved, of this shape; a transposed convolution is the same."""
    forms = transposed_forms(gradient.shape, weight.shape, geometry, shape)
    result = forms[cheapest(g, forms, (gradient, weight), target)](g, gradient, weight)
    if bias is None:
        return result
    return result + reshape(g, bias, (1, bias.elements, *[1] * (len(shape) - 2)))


def forward_forms(
    image: tuple[int, ...], weight: tuple[int, ...], geometry: Geometry, result: tuple[int, ...]
) -> dict[str, Form]:
    """Give the forms of a convolution of an image of the first shape into one of the last."""
    forms: dict[str, Form] = {"conv": partial(_conv, geometry=geometry)}
    if geometry.groups == 1:
        forms["patches"] = partial(_from_patches, geometry=geometry, result=result)
        axes = axes_of(image, result, weight, geometry)
        if is_small(axes):
            forms["selected"] = partial(_from_selected, axes=axes, result=result)
    return forms


def transposed_forms(
    gradient: tuple[int, ...], weight: tuple[int, ...], geometry: Geometry, shape: tuple[int, ...]
) -> dict[str, Form]:
    """Give the forms of a transposed convolution from an image of the first shape to one of the last."""
    forms: dict[str, Form] = {"transpose": partial(input_gradient, geometry=geometry, shape=shape)}
    axes = axes_of(shape, gradient, weight, geometry)
    is_single = math.prod(weight[2:]) == 1 and not any(geometry.pads)
    is_dense = max(geometry.strides) == 1
    if is_dense and min(reach - p for reach, p in _margins(axes)) >= 0:
        forms["flipped"] = partial(_flipped, geometry=geometry, axes=axes)
        if geometry.groups == 1:
            forms["patches"] = partial(_turned_patches, axes=axes, shape=shape)
    if geometry.groups == 1 and is_single and is_dense:
        forms["product"] = partial(_one_tap, shape=shape)
    elif geometry.groups == 1 and _candidates(axes) * math.prod(shape[2:]) <= LARGEST_INDEX:
        forms["spread"] = partial(_spread, axes=axes, shape=shape)
        if is_small(axes):
            forms["selected"] = partial(_spread_selected, axes=axes, shape=shape)
    return forms


def _conv(g: Graph, x: Value, weight: Value, bias: Value | None = None, *, geometry: Geometry) -> Value:
    return g.op("Conv", x, weight, bias, **geometry.attributes)


def _from_patches(
    g: Graph, x: Value, weight: Value, bias: Value | None = None, *, geometry: Geometry,
    result: tuple[int, ...],
) -> Value:  # fmt: skip
    outputs, channels, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    axes = axes_of(x.shape, result, weight.shape, geometry)
    columns = seen(g, x, [axis.of_input(turned=False) for axis in axes], pads_last=True)
    # The smaller of the two is turned as the other lies.
    if g.choice(lambda: columns.shape[0] < outputs):
        columns = columns_swapped(g, columns, taps)
        matrix = reshape(g, weight, (outputs, channels * taps))
    else:
        turned = transpose(g, reshape(g, weight, (outputs, channels, taps)), [0, 2, 1])
        matrix = reshape(g, turned, (outputs, taps * channels))
    return _channels_second(g, gemm(g, columns, transpose(g, matrix, [1, 0]), bias), result)


def _from_selected(
    g: Graph, x: Value, weight: Value, bias: Value | None = None, *, axes: list[Axis], result: tuple[int, ...]
) -> Value:
    matrix = reshape(g, weight, (weight.shape[0], math.prod(weight.shape[1:])))
    return _channels_second(g, gemm(g, selected(g, x, axes), transpose(g, matrix, [1, 0]), bias), result)


def _channels_second(g: Graph, rows: Value, shape: tuple[int, ...]) -> Value:
    """Lay rows, one for each position of a batch of images, out as images of this shape."""
    apart = reshape(g, rows, (shape[0], math.prod(shape[2:]), shape[1]))
    return reshape(g, transpose(g, apart, [0, 2, 1]), shape)


def input_gradient(
    g: Graph, gradient: Value, weight: Value, geometry: Geometry, shape: tuple[int, ...]
) -> Value:
    """Write a transposed convolution that gives this shape."""
    # Rows at the end that the strides never reached get no gradient: output_padding adds them.
    unreached = [
        n - ((o - 1) * s - 2 * p + d * (k - 1) + 1)
        for n, o, s, p, d, k in zip(
            shape[2:], gradient.shape[2:], geometry.strides, geometry.pads, geometry.dilations,
            weight.shape[2:], strict=True,
        )
    ]  # fmt: skip
    return g.op("ConvTranspose", gradient, weight, output_padding=unreached, **geometry.attributes)


def _flipped(g: Graph, gradient: Value, weight: Value, *, geometry: Geometry, axes: list[Axis]) -> Value:
    spatial = list(range(2, weight.rank))
    if any(axis.taps > 1 for axis in axes):
        bounds = (g.integers([number] * len(axes)) for number in (-1, np.iinfo(np.int64).min))
        weight = g.op("Slice", weight, *bounds, g.integers(spatial), g.integers([-1] * len(axes)))
    outputs, channels, groups = weight.shape[0], weight.shape[1], geometry.groups
    apart = reshape(g, weight, (groups, outputs // groups, channels, *weight.shape[2:]))
    turned = transpose(g, apart, [0, 2, 1, *(axis + 1 for axis in spatial)])
    kernel = reshape(g, turned, (groups * channels, outputs // groups, *weight.shape[2:]))
    pads = [reach - p for reach, p in _margins(axes)]
    return g.op("Conv", gradient, kernel, pads=pads * 2, dilations=list(geometry.dilations), group=groups)


def _turned_patches(
    g: Graph, gradient: Value, weight: Value, *, axes: list[Axis], shape: tuple[int, ...]
) -> Value:  # fmt: skip
    outputs, channels, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    columns = seen(g, gradient, [axis.of_gradient(turned=True) for axis in axes], pads_last=True)
    turned = transpose(g, reshape(g, weight, (outputs, channels, taps)), [2, 0, 1])
    return _channels_second(g, gemm(g, columns, reshape(g, turned, (taps * outputs, channels))), shape)


def _one_tap(g: Graph, gradient: Value, weight: Value, *, shape: tuple[int, ...]) -> Value:
    matrix = reshape(g, weight, weight.shape[:2])
    if math.prod(shape[2:]) == 1:
        return reshape(g, gemm(g, reshape(g, gradient, gradient.shape[:2]), matrix), shape)
    return reshape(g, matmul(g, transpose(g, matrix, [1, 0]), flat_images(g, gradient)), shape)


def _spread(g: Graph, gradient: Value, weight: Value, *, axes: list[Axis], shape: tuple[int, ...]) -> Value:
    outputs, channels, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    batch, positions = gradient.shape[0], math.prod(gradient.shape[2:])
    # One more position, of zeros: where fewer taps than elsewhere reach a pixel.
    rows = pad(g, transpose(g, flat_images(g, gradient), [0, 2, 1]), (0, 0, 0), (0, 1, 0))
    rows = reshape(g, rows, (batch * (positions + 1), outputs))
    kernel = reshape(g, weight, (outputs, channels, taps))
    if g.choice(lambda: rows.shape[0] < outputs):
        each = matmul(g, rows, reshape(g, kernel, (outputs, channels * taps)))
        each = columns_swapped(g, each, channels)
    else:
        turned = reshape(g, transpose(g, kernel, [0, 2, 1]), (outputs, taps * channels))
        each = matmul(g, rows, turned)
    each = reshape(g, each, (batch, (positions + 1) * taps, channels))
    reaching = g.op("Gather", each, g.constant(_reaching(axes).astype(np.int32)), axis=1)
    return _channels_second(g, reduce(g, "ReduceSum", reaching, [2], keepdims=False), shape)


def _spread_selected(
    g: Graph, gradient: Value, weight: Value, *, axes: list[Axis], shape: tuple[int, ...]
) -> Value:
    outputs, channels, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    batch, positions = gradient.shape[0], math.prod(gradient.shape[2:])
    rows = reshape(g, transpose(g, flat_images(g, gradient), [0, 2, 1]), (batch * positions, outputs))
    each = matmul(g, rows, reshape(g, weight, (outputs, channels * taps)))
    each = reshape(g, each, (batch, positions, channels, taps))
    reaching = selection(axes).transpose(0, 2, 1)[None].astype(gradient.numpy_dtype)
    placed = g.op("MatMul", each, g.constant(reaching))
    return reshape(g, reduce(g, "ReduceSum", placed, [1], keepdims=False), shape)


def _reaching(axes: list[Axis]) -> np.ndarray:
    """Number the rows (position, tap) that reach each pixel; those that are missing have a row of zeros."""
    positions, taps = math.prod(axis.result for axis in axes), math.prod(axis.taps for axis in axes)
    place, tap = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    exists = np.ones((1, 1), bool)
    for axis in axes:
        numbers, which, reached = axis.reaching()
        place = np.add.outer(place * axis.result, numbers)
        tap = np.add.outer(tap * axis.taps, which)
        exists = np.logical_and.outer(exists, reached)
        # Pixels of both axes come before the taps that reach them.
        shape = (place.shape[0] * axis.size, -1)
        place, tap, exists = (a.transpose(0, 2, 1, 3).reshape(shape) for a in (place, tap, exists))
    return np.where(exists, place * taps + tap, positions * taps)


def _candidates(axes: list[Axis]) -> int:
    return math.prod(axis.reaching()[0].shape[1] for axis in axes)


def _margins(axes: list[Axis]) -> list[tuple[int, int]]:
    """Reach of the kernel along each axis, and the part of it that is padding."""
    return [((axis.taps - 1) * axis.dilation, axis.padding) for axis in axes]
