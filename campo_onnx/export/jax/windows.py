"""Convolution and pooling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from campo_onnx.builder.compact import crop, full, pad, reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.jax.arrays import in_type_of_result, spread
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_MOST_AXES = 3  # what providers pool over


def _inverse(permutation: Sequence[int]) -> list[int]:
    return [int(i) for i in np.argsort(permutation)]


def _convolution(
    g: Graph, expected: Expected, image: Value, kernel: Value, *, window_strides: Any, padding: Any,
    lhs_dilation: Any, rhs_dilation: Any, dimension_numbers: Any, feature_group_count: int,
    batch_group_count: int,
) -> Value:  # fmt: skip
    """Convolve in the layout of ONNX.

    The gradient of the input spreads the image (``lhs_dilation``); that of a grouped weight has
    groups along the batch, which move to the channels.
    """
    spec = dimension_numbers
    image, kernel = in_type_of_result(g, expected, image), in_type_of_result(g, expected, kernel)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laid:
    """Order of axes for a window: batch and channels first, then what the window covers.

    `others` are the axes that it does not cover, `spatial` those that it does.
    """

    others: tuple[int, ...]
    spatial: tuple[int, ...]

    @classmethod
    def of(cls, window: Sequence[int]) -> "_Laid":
        """Tell the axes of a window apart."""
        spatial = tuple(axis for axis, size in enumerate(window) if size > 1) or (len(window) - 1,)
        if len(spatial) > _MOST_AXES:
            raise UntranslatableError(f"a window of shape {tuple(window)}, over more than three axes")
        return cls(others=tuple(axis for axis in range(len(window)) if axis not in spatial), spatial=spatial)

    def laid(self, g: Graph, x: Value) -> Value:
        """Lay a tensor so."""
        turned = transpose(g, x, [*self.others, *self.spatial])
        if len(self.others) == 2:
            return turned
        outer = math.prod(x.shape[i] for i in self.others)
        return reshape(g, turned, (outer, 1, *(x.shape[i] for i in self.spatial)))

    def back(self, g: Graph, y: Value, shape: Sequence[int]) -> Value:
        """Lay a result of this shape as the tensor was."""
        apart = reshape(g, y, [shape[i] for i in (*self.others, *self.spatial)])
        return transpose(g, apart, _inverse([*self.others, *self.spatial]))


def _max_pool(
    g: Graph, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any, outputs: int
) -> tuple[_Laid, tuple[Value, ...]]:
    laid = _Laid.of(window_dimensions)
    if any(window_strides[i] != 1 or tuple(padding[i]) != (0, 0) for i in laid.others):
        raise UntranslatableError("a window of one element that moves by more, or is padded")
    pooled = g.ops(
        "MaxPool",
        laid.laid(g, x),
        outputs=outputs,
        kernel_shape=[window_dimensions[i] for i in laid.spatial],
        strides=[window_strides[i] for i in laid.spatial],
        pads=[*(padding[i][0] for i in laid.spatial), *(padding[i][1] for i in laid.spatial)],
    )
    return laid, pooled


def _refuse_dilation(*dilations: Any) -> None:
    if any(d != 1 for dilation in dilations for d in dilation or ()):
        raise UntranslatableError("a dilated window")


def _window_max(
    g: Graph, expected: Expected, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Value:  # fmt: skip
    _refuse_dilation(base_dilation, window_dilation)
    laid, (y,) = _max_pool(
        g, x, window_dimensions=window_dimensions, window_strides=window_strides, padding=padding, outputs=1
    )
    return laid.back(g, y, expected.shape)


def _window_sum(
    g: Graph, expected: Expected, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any,
) -> Value:  # fmt: skip
    _refuse_dilation(window_dilation)
    laid = _Laid.of(window_dimensions)
    for axis, dilation in enumerate(base_dilation):
        x = spread(g, x, axis, dilation - 1)
    x = pad(g, x, [low for low, _ in padding], [high for _, high in padding])
    steps = [window_strides[i] if i in laid.others else 1 for i in range(x.rank)]
    x = crop(g, x, [0] * x.rank, list(x.shape), steps)  # a window of one element only leaves elements out
    kernel = [window_dimensions[i] for i in laid.spatial]
    strides = [window_strides[i] for i in laid.spatial]
    mean = g.op("AveragePool", laid.laid(g, x), kernel_shape=kernel, strides=strides)
    return laid.back(g, mean * math.prod(kernel), expected.shape)


def _select_and_scatter_add(
    g: Graph, expected: Expected, source: Value, x: Value, *, window_dimensions: Any, window_strides: Any,
    padding: Any, select_prim: Any,
) -> Value:  # fmt: skip
    """Give each gradient to the largest element of its window, or to the smallest."""
    if select_prim.name == "le":
        x = -x
    elif select_prim.name != "ge":
        raise UntranslatableError(f"selection by {select_prim.name}")
    laid, pooled = _max_pool(
        g, x, window_dimensions=window_dimensions, window_strides=window_strides, padding=padding, outputs=2
    )
    zeros = full(g, (x.elements,), 0, source.dtype)
    flat = reshape(g, pooled[1], (source.elements,))
    values = reshape(g, laid.laid(g, source), (source.elements,))
    added = g.op("ScatterElements", zeros, flat, values, axis=0, reduction="add")
    return laid.back(g, added, x.shape)


TRANSLATIONS: Table = table(
    ("conv_general_dilated", _convolution),
    ("reduce_window_max", _window_max),
    ("reduce_window_sum", _window_sum),
    ("select_and_scatter_add", _select_and_scatter_add),
)
