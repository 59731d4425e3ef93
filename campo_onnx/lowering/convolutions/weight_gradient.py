"""The gradient of a convolution's weight, in the form that is predicted to be fastest.

- ``"conv"``: a convolution of the input with the output's gradient, as large as an image, as kernel
  (:mod:`campo_onnx.lowering.convolutions.gradient_as_kernel`). On a GPU only grouped convolutions take it:
  cuDNN has no fast kernel for it, and took up to 140 times as long as the products (H200,
  `benchmarks/results/calibration_cuda.md`).
- ``"matmul"``: the input as each tap of the kernel sees it, times the output's gradient. More nodes,
  but the work is one matrix product, the shape tensor cores are made for.
- ``"images"``: the same with a product for each image, the results summed: nothing is transposed.
- ``"pairs_1"``, ``"pairs_2"``: of a depthwise convolution on a CPU, every element along the last axis, or the
  last two, times every element of the gradient (:mod:`campo_onnx.lowering.convolutions.weight_gradient`).

``"matmul"`` and ``"images"`` never repeat more than they must. A tap that moves along an axis by steps of one
may as well move the gradient the other way: of a 3 by 3 kernel, three taps go to each side, so that six
copies are made instead of nine. And a kernel of one tap needs no copies at all. On a CPU ``"matmul"`` copies
for all taps nevertheless, and lays the product out such that nothing large is transposed; there, what the
taps see may also be selected or unfolded by products and convolutions with zeros and ones.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from campo_onnx.builder.compact import crop, pad, reduce, reshape, swap_last_two, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import gemm, matmul
from campo_onnx.builder.target import CUDA
from campo_onnx.builder.value import Value
from campo_onnx.lowering.convolutions.form_choice import Form, cheapest
from campo_onnx.lowering.convolutions.gradient_as_kernel import by_convolution
from campo_onnx.lowering.convolutions.patches import (
    LARGEST_INDEX,
    Axis,
    Geometry,
    axes_of,
    columns_swapped,
    flat_images,
    is_small,
    numbered,
    seen,
    seen_in_place,
    selected,
    selection,
    selection_size,
    unfolded,
)
from campo_onnx.targets.target import Target


def by_pairs(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], axes: Sequence[Axis], count: int
) -> Value:
    """Write the gradient of a depthwise weight of `shape` as two products of matrices.

    As a convolution it has one filter in each group; libraries have no fast kernel for that. Here a product
    for each channel multiplies every element along the last `count` axes of the input by every element of
    the gradient. It sums over images and all other axes, along which the lines that each tap reads are
    gathered. A second product, with zeros and ones, sums what each tap along the last axes brings together.
    That takes more multiplications, as many times as a line is longer than the kernel, at a multiple of the
    speed.
    """
    batch, channels = x.shape[:2]
    gathered, paired = axes[:-count], axes[-count:]
    outputs = shape[0] // channels
    taps, lines = math.prod(axis.taps for axis in gathered), math.prod(axis.result for axis in gathered)
    width, result = math.prod(axis.size for axis in paired), math.prod(axis.result for axis in paired)
    columns = reshape(g, _lines(g, x, gathered, width), (channels, batch * lines, taps * width))
    rows = transpose(g, reshape(g, gradient, (batch, channels, outputs, lines, result)), [1, 0, 3, 2, 4])
    rows = reshape(g, rows, (channels, batch * lines, outputs * result))
    pairs = matmul(g, swap_last_two(g, columns), rows)
    pairs = transpose(g, reshape(g, pairs, (channels, taps, width, outputs, result)), [0, 3, 1, 2, 4])
    pairs = reshape(g, pairs, (shape[0] * taps, width * result))
    ones = selection(paired).swapaxes(0, 1).reshape(width * result, -1)
    return reshape(g, matmul(g, pairs, g.constant(ones.astype(x.numpy_dtype))), shape)


def _lines(g: Graph, x: Value, axes: Sequence[Axis], width: int) -> Value:
    """Gather the lines that the taps along `axes` read: (channels, images, lines and taps, width)."""
    readings = [axis.of_input(turned=False) for axis in axes]
    before, after = [r.before for r in readings], [r.after for r in readings]
    others = [0] * (x.rank - 2 - len(axes))
    x = pad(g, x, (0, 0, *before, *others), (0, 0, *after, *others))
    sizes = x.shape[2 : 2 + len(axes)]
    x = transpose(g, reshape(g, x, (*x.shape[:2], math.prod(sizes), width)), [1, 0, 2, 3])
    first, offsets = numbered(readings, sizes)
    index = np.add.outer(first, offsets).astype(np.int32)
    if np.array_equal(index.ravel(), np.arange(x.shape[2])):
        return x
    return g.op("Gather", x, g.constant(index), axis=2)


_FEWEST_OUTPUTS = 16
"""A product of fewer rows for each image is slower than its price on a CPU (a third of the speed with 12)."""


def weight_gradient(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry, device: Target
) -> Value:
    """Write the gradient of a weight."""
    by_kernel = partial(by_convolution, shape=shape, geometry=geometry)
    is_gpu, axes = device.hardware.is_gpu, axes_of(x.shape, gradient.shape, shape, geometry)
    forms: dict[str, Form] = {}
    if geometry.groups > 1:
        forms["conv"] = by_kernel
        for count in range(1, len(axes) + 1) if shape[1] == 1 and not is_gpu else ():
            if selection_size(axes[-count:]) <= LARGEST_INDEX:
                forms[f"pairs_{count}"] = partial(by_pairs, shape=shape, axes=axes, count=count)
        return forms[cheapest(g, forms, (x, gradient), device)](g, x, gradient)
    forms["matmul"] = partial(by_matmul if is_gpu else _on_cpu, shape=shape, geometry=geometry)
    if g.target == CUDA:  # gathering elements instead of rows of channels is slow on a CPU
        forms["images"] = partial(by_images, shape=shape, geometry=geometry)
    if not is_gpu:
        forms["conv"] = by_kernel
        if is_small(axes):
            forms["selected"] = partial(_by_selection, shape=shape, axes=axes)
        if shape[0] >= _FEWEST_OUTPUTS and g.may_use("FusedMatMul", x):
            forms["unfolded"] = partial(_by_unfolding, shape=shape, axes=axes)
    return forms[cheapest(g, forms, (x, gradient), device)](g, x, gradient)


def by_matmul(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry) -> Value:
    """Multiply (positions, taps and outputs), transposed, by (positions, taps and channels)."""
    if math.prod(shape[2:]) == 1 and not any(geometry.pads):
        return reshape(g, _pointwise(g, _strided(g, x, gradient, geometry), gradient), shape)
    axes = axes_of(x.shape, gradient.shape, shape, geometry)
    turned = g.choice(lambda: _turned(axes, shape[1], shape[0]))
    columns = seen(g, x, [axis.of_input(t) for axis, t in zip(axes, turned, strict=True)])
    rows = seen(g, gradient, [axis.of_gradient(t) for axis, t in zip(axes, turned, strict=True)])
    of_gradient, of_input = _taps_apart(turned)
    product = matmul(g, transpose(g, rows, [1, 0]), columns)
    return _as_weight(g, product, shape, [*of_gradient, 0, *of_input, 1])


def _on_cpu(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry) -> Value:
    """Multiply (outputs, positions) by (positions, channels and taps); all taps move along the input."""
    if math.prod(shape[2:]) == 1 and not any(geometry.pads):
        return reshape(g, _pointwise(g, _strided(g, x, gradient, geometry), gradient), shape)
    outputs, channels, *taps = shape
    axes = axes_of(x.shape, gradient.shape, shape, geometry)
    columns = seen(g, x, [axis.of_input(turned=False) for axis in axes], pads_last=True)
    positions = columns.shape[0]
    # Not transposed inside the product, where that takes twice as long.
    rows = reshape(g, transpose(g, flat_images(g, gradient), [1, 0, 2]), (outputs, positions))
    if g.choice(lambda: positions < outputs):  # the smaller of the two is laid out as weights are
        return reshape(g, matmul(g, rows, columns_swapped(g, columns, math.prod(taps))), shape)
    apart = reshape(g, matmul(g, rows, columns), (outputs, *taps, channels))
    # The last node, since a Reshape that makes an output of the graph is a copy.
    return transpose(g, apart, [0, len(taps) + 1, *range(1, len(taps) + 1)])


def _by_selection(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], axes: list[Axis]) -> Value:
    """Multiply (outputs, positions) by (positions, channels and taps), which a product selects."""
    columns = selected(g, x, axes)
    rows = transpose(g, flat_images(g, gradient), [1, 0, 2])
    return reshape(g, matmul(g, reshape(g, rows, (shape[0], columns.shape[0])), columns), shape)


def _by_unfolding(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], axes: list[Axis]) -> Value:
    """Multiply (outputs, positions) by (positions, channels and taps) for each image, and sum.

    What the taps see is made axis by axis, by convolutions of each channel with zeros and ones: of images of
    few channels, such as a network's first, that takes less than to gather rows of channels.
    """
    columns = unfolded(g, x, axes)
    return reshape(g, _summed_products(g, flat_images(g, gradient), flat_images(g, columns)), shape)


def by_images(g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry) -> Value:
    """Multiply (taps and outputs, positions) by (positions, taps and channels) for each image, and sum."""
    if math.prod(shape[2:]) == 1 and not any(geometry.pads):
        x = _strided(g, x, gradient, geometry)
        return reshape(g, _summed_products(g, *(flat_images(g, image) for image in (gradient, x))), shape)
    axes = axes_of(x.shape, gradient.shape, shape, geometry)
    turned = g.choice(lambda: _turned(axes, shape[1], shape[0]))
    columns = seen_in_place(g, x, [axis.of_input(t) for axis, t in zip(axes, turned, strict=True)])
    rows = seen_in_place(g, gradient, [axis.of_gradient(t) for axis, t in zip(axes, turned, strict=True)])
    of_gradient, of_input = _taps_apart(turned)
    return _as_weight(g, _summed_products(g, rows, columns), shape, [0, *of_gradient, 1, *of_input])


def _summed_products(g: Graph, rows: Value, columns: Value) -> Value:
    """Multiply (batch, m, positions) by (batch, n, positions), transposed, and sum over the batch."""
    return reduce(g, "ReduceSum", matmul(g, rows, swap_last_two(g, columns)), [0], keepdims=False)


def _taps_apart(turned: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Give the axes of the weight whose taps move along the gradient, and those along the input."""
    of_gradient, of_input = ([i for i, t in enumerate(turned, start=2) if t is own] for own in (True, False))
    return of_gradient, of_input


def _as_weight(g: Graph, product: Value, shape: tuple[int, ...], axes: Sequence[int]) -> Value:
    """Lay a product out as the weight is, whose axes it has in another order."""
    apart = reshape(g, product, [shape[axis] for axis in axes])
    return transpose(g, apart, [axes.index(axis) for axis in range(len(shape))])


def _turned(axes: Sequence[Axis], channels: int, outputs: int) -> tuple[bool, ...]:
    """Choose the axes whose taps move along the gradient: those that make the fewest elements."""

    def elements(turned: Sequence[bool]) -> int:
        along_gradient = math.prod(axis.taps for axis, t in zip(axes, turned, strict=True) if t)
        along_input = math.prod(axis.taps for axis, t in zip(axes, turned, strict=True) if not t)
        positions = math.prod(axis.size if t else axis.result for axis, t in zip(axes, turned, strict=True))
        return positions * (channels * along_input + outputs * along_gradient)

    can_turn = [(False, True) if axis.taps > 1 and axis.stride == 1 else (False,) for axis in axes]
    return min(itertools.product(*can_turn), key=elements)


def _strided(g: Graph, x: Value, gradient: Value, geometry: Geometry) -> Value:
    """Leave out what the strides step over."""
    ends = [(o - 1) * s + 1 for o, s in zip(gradient.shape[2:], geometry.strides, strict=True)]
    return crop(g, x, [0] * x.rank, [*x.shape[:2], *ends], [1, 1, *geometry.strides])


def _pointwise(g: Graph, x: Value, gradient: Value) -> Value:
    """Multiply (outputs, positions) by (positions, channels), with one kernel tap.

    One product an image leaves the larger of the two where it is; only its own results must be
    summed, and where those are larger still, one product of all images is made instead.
    """
    batch, channels, outputs, positions = x.shape[0], x.shape[1], gradient.shape[1], math.prod(x.shape[2:])
    x = reshape(g, x, (batch, channels, positions))
    gradient = reshape(g, gradient, (batch, outputs, positions))
    if g.choice(lambda: batch == 1 or min(channels, outputs) >= positions):
        columns, rows = (
            reshape(g, transpose(g, image, [1, 0, 2]), (image.shape[1], batch * positions))
            for image in (x, gradient)
        )
        return gemm(g, rows, transpose(g, columns, [1, 0]))
    if channels <= outputs or g.may_use("FusedMatMul", x):
        return _summed_products(g, gradient, x)
    return transpose(g, _summed_products(g, x, gradient), [1, 0])
