"""Convolution and pooling."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from campo_onnx.export.compact import elementwise, full, pad, reshape, transpose
from campo_onnx.export.graph import Graph
from campo_onnx.export.jax.arrays import spread
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table
from campo_onnx.export.value import Value


def _inverse(permutation: Sequence[int]) -> list[int]:
    return [int(i) for i in np.argsort(permutation)]


def _convolution(
    g: Graph, expected: Expected, image: Value, kernel: Value, *, window_strides: Any, padding: Any,
    lhs_dilation: Any, rhs_dilation: Any, dimension_numbers: Any, feature_group_count: int,
    batch_group_count: int, **_: Any,
) -> Value:  # fmt: skip
    """Convolve in the layout of ONNX.

    The gradient of the input spreads the image (``lhs_dilation``); that of a grouped weight has
    groups along the batch, which move to the channels.
    """
    spec = dimension_numbers
    image, kernel = transpose(g, image, spec.lhs_spec), transpose(g, kernel, spec.rhs_spec)
    groups = feature_group_count
    if batch_group_count > 1:
        groups = batch_group_count
        batch = image.shape[0] // groups
        split = reshape(g, image, (groups, batch, *image.shape[1:]))
        moved = transpose(g, split, [1, 0, *range(2, split.rank)])
        image = reshape(g, moved, (batch, groups * image.shape[1], *image.shape[2:]))
    for axis, dilation in enumerate(lhs_dilation):
        image = spread(g, image, axis + 2, dilation - 1)
    lows, highs = [low for low, _ in padding], [high for _, high in padding]
    image = pad(g, image, [0, 0, *(min(0, n) for n in lows)], [0, 0, *(min(0, n) for n in highs)])
    result = g.op(
        "Conv",
        image,
        kernel,
        strides=list(window_strides),
        dilations=list(rhs_dilation),
        pads=[*(max(0, n) for n in lows), *(max(0, n) for n in highs)],
        group=groups,
    )
    return transpose(g, result, _inverse(spec.out_spec))


def _spatial_last(window: Sequence[int]) -> list[int]:
    """Give the order of axes that puts what the window covers behind batch and channels."""
    spatial = [axis for axis, size in enumerate(window) if size > 1]
    others = [axis for axis in range(len(window)) if axis not in spatial]
    if len(others) != 2:
        raise UntranslatableError(f"a window of shape {tuple(window)}, which leaves no batch and channels")
    return others + spatial


def _max_pool(
    g: Graph, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any, outputs: int
) -> tuple[list[int], tuple[Value, ...]]:
    order = _spatial_last(window_dimensions)
    spatial = order[2:]
    pooled = g.ops(
        "MaxPool",
        transpose(g, x, order),
        outputs=outputs,
        kernel_shape=[window_dimensions[i] for i in spatial],
        strides=[window_strides[i] for i in spatial],
        pads=[*(padding[i][0] for i in spatial), *(padding[i][1] for i in spatial)],
    )
    return order, pooled


def _refuse_dilation(*dilations: Any) -> None:
    if any(d != 1 for dilation in dilations for d in dilation or ()):
        raise UntranslatableError("a dilated window")


def _window_max(
    g: Graph, expected: Expected, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any, **_: Any,
) -> Value:  # fmt: skip
    _refuse_dilation(base_dilation, window_dilation)
    order, (y,) = _max_pool(
        g,
        x,
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=padding,
        outputs=1,
    )
    return transpose(g, y, _inverse(order))


def _window_sum(
    g: Graph, expected: Expected, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any, **_: Any,
) -> Value:  # fmt: skip
    _refuse_dilation(window_dilation)
    order = _spatial_last(window_dimensions)
    spatial = order[2:]
    for axis, dilation in enumerate(base_dilation):
        x = spread(g, x, axis, dilation - 1)
    x = pad(g, x, [low for low, _ in padding], [high for _, high in padding])
    kernel = [window_dimensions[i] for i in spatial]
    strides = [window_strides[i] for i in spatial]
    mean = g.op("AveragePool", transpose(g, x, order), kernel_shape=kernel, strides=strides)
    total = elementwise(g, "Mul", mean, g.scalar(math.prod(kernel), x.dtype))
    return transpose(g, total, _inverse(order))


def _select_and_scatter_add(
    g: Graph, expected: Expected, source: Value, x: Value, *, window_dimensions: Any, window_strides: Any,
    padding: Any, select_prim: Any, **_: Any,
) -> Value:  # fmt: skip
    """Give each gradient to the largest element of its window."""
    if select_prim.name != "ge":
        raise UntranslatableError(f"selection by {select_prim.name}")
    order, pooled = _max_pool(
        g,
        x,
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=padding,
        outputs=2,
    )
    zeros = full(g, (x.elements,), 0, source.dtype)
    flat = reshape(g, pooled[1], (source.elements,))
    values = reshape(g, transpose(g, source, order), (source.elements,))
    added = g.op("ScatterElements", zeros, flat, values, axis=0, reduction="add")
    return transpose(g, reshape(g, added, [x.shape[i] for i in order]), _inverse(order))


TRANSLATIONS: Table = table(
    ("conv_general_dilated", _convolution),
    ("reduce_window_max", _window_max),
    ("reduce_window_sum", _window_sum),
    ("select_and_scatter_add", _select_and_scatter_add),
)
