"""The gradient of a depthwise convolution's weight as two products of matrices.

As a convolution it has one filter in each group, for which libraries have no fast kernel. Here a product for
each channel multiplies every element along the last axes of the input by every element of the gradient. It
sums over images and all other axes, along which the lines that each tap reads are gathered. A second product,
with zeros and ones, sums what each tap along the last axes brings together. That takes more multiplications,
as many times as a line is longer than the kernel, at a multiple of the speed.
"""

import math
from collections.abc import Sequence

import numpy as np

from campo_onnx.builder.compact import pad, reshape, swap_last_two, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import matmul
from campo_onnx.builder.value import Value
from campo_onnx.lowering.convolutions.patches import Axis, numbered, selection


def by_pairs(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], axes: Sequence[Axis], count: int
) -> Value:
    """Write the gradient of a weight of `shape`, with pairs of elements along the last `count` axes."""
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
