"""Gather and scatter in all generality: which rows of the flattened tensor each index means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode
from onnx import TensorProto

from campo_onnx.export.compact import (
    cast,
    crop,
    elementwise,
    expand,
    full,
    reshape,
    scatter_add_rows,
    transpose,
)
from campo_onnx.export.graph import Graph
from campo_onnx.export.translation import Expected, Table, table
from campo_onnx.export.value import Value

_INT64 = int(TensorProto.INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A window into a tensor, and where indices put it.

    Parameters
    ----------
    shape
        Of the tensor.
    sizes
        Of the window along each axis.
    mapped
        The axis that each number of an index is for.
    squeezed
        Axes along which the window is 1 and which it does not have.
    batching, index_batching
        Axes that tensor and indices share.
    clips
        Whether windows that would reach out are moved inside; otherwise indices are taken to be right.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    mapped: tuple[int, ...]
    squeezed: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    clips: bool

    @property
    def axes(self) -> list[int]:
        """The axes that the window has."""
        return [i for i in range(len(self.shape)) if i not in (*self.squeezed, *self.batching)]

    @property
    def whole(self) -> int:
        """How many of the last axes it spans in full."""
        count, rank = 0, len(self.shape)
        while count < rank:
            axis = rank - 1 - count
            if axis not in self.axes or axis in self.mapped or self.sizes[axis] != self.shape[axis]:
                break
            count += 1
        return count

    @property
    def width(self) -> int:
        """Elements of a row: of the axes spanned in full."""
        return math.prod(self.shape[len(self.shape) - self.whole :])

    def rows(self, g: Graph, indices: Value) -> Value:
        """Give the numbers of the rows of the window for each index."""
        batch = indices.shape[:-1]
        steps = [math.prod(self.shape[i + 1 :]) // self.width for i in range(len(self.shape))]
        indices = cast(g, indices, _INT64)
        total = g.constant(np.zeros((1,) * len(batch), np.int64))
        for position, axis in enumerate(self.mapped):
            starts, ends = [0] * indices.rank, list(indices.shape)
            starts[-1], ends[-1] = position, position + 1
            start = reshape(g, crop(g, indices, starts, ends), batch)
            if self.clips:
                last = g.scalar(self.shape[axis] - self.sizes[axis], _INT64)
                start = elementwise(g, "Min", elementwise(g, "Max", start, g.scalar(0, _INT64)), last)
            if steps[axis] != 1:
                start = elementwise(g, "Mul", start, g.scalar(steps[axis], _INT64))
            total = elementwise(g, "Add", total, start)
        for axis, along in zip(self.batching, self.index_batching, strict=True):
            line = np.arange(batch[along], dtype=np.int64) * steps[axis]
            aligned = [-1 if i == along else 1 for i in range(len(batch))]
            total = elementwise(g, "Add", total, g.constant(line.reshape(aligned)))
        inner = [i for i in self.axes if i < len(self.shape) - self.whole]
        offsets = np.zeros((), np.int64)
        for axis in inner:
            offsets = np.add.outer(offsets, np.arange(self.sizes[axis], dtype=np.int64) * steps[axis])
        total = reshape(g, expand(g, total, batch), (*batch, *[1] * len(inner)))
        return elementwise(g, "Add", total, g.constant(offsets)) if inner else total


def gathered(
    g: Graph, expected: Expected, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Any,
    mode: Any = None, **_: Any,
) -> Value:  # fmt: skip
    """Look up windows."""
    d = dimension_numbers
    window = _Window(
        shape=x.shape,
        sizes=tuple(slice_sizes),
        mapped=tuple(d.start_index_map),
        squeezed=tuple(d.collapsed_slice_dims),
        batching=tuple(d.operand_batching_dims),
        index_batching=tuple(d.start_indices_batching_dims),
        clips=mode == GatherScatterMode.CLIP,
    )
    rows = window.rows(g, indices)
    found = g.op("Gather", reshape(g, x, (x.elements // window.width, window.width)), rows, axis=0)
    batch = indices.shape[:-1]
    apart = reshape(g, found, (*batch, *(window.sizes[i] for i in window.axes)))
    return transpose(g, apart, _interleaved(len(batch), d.offset_dims, len(expected.shape)))


def _interleaved(batch: int, window_dims: Sequence[int], rank: int) -> list[int]:
    """Order axes that are (batch, window) so that those of the window are at `window_dims`."""
    of_batch, of_window = iter(range(batch)), iter(range(batch, rank))
    return [next(of_window) if i in window_dims else next(of_batch) for i in range(rank)]


def scattered(
    reduction: str | None, g: Graph, expected: Expected, x: Value, indices: Value, updates: Value, *,
    dimension_numbers: Any, mode: Any = None, **_: Any,
) -> Value:  # fmt: skip
    """Write windows, or combine them with what is there."""
    d = dimension_numbers
    squeezed, batching = tuple(d.inserted_window_dims), tuple(d.operand_batching_dims)
    axes = [i for i in range(x.rank) if i not in (*squeezed, *batching)]
    sizes = [1] * x.rank
    for axis, dim in zip(axes, d.update_window_dims, strict=True):
        sizes[axis] = updates.shape[dim]
    window = _Window(
        shape=x.shape,
        sizes=tuple(sizes),
        mapped=tuple(d.scatter_dims_to_operand_dims),
        squeezed=squeezed,
        batching=batching,
        index_batching=tuple(d.scatter_indices_batching_dims),
        clips=mode == GatherScatterMode.CLIP,
    )
    rows = window.rows(g, indices)
    outer = [i for i in range(updates.rank) if i not in d.update_window_dims]
    values = reshape(g, transpose(g, updates, [*outer, *d.update_window_dims]), (rows.elements, window.width))
    index, count = reshape(g, rows, (rows.elements,)), x.elements // window.width
    if reduction == "add" and full(g, x.shape, 0, x.dtype) is x:
        return reshape(g, scatter_add_rows(g, values, index, count), x.shape)
    # Not ScatterND: with repeated indices it loses updates on the CPU provider's second thread.
    column = expand(g, reshape(g, index, (rows.elements, 1)), values.shape)
    target = reshape(g, x, (count, window.width))
    return reshape(g, g.op("ScatterElements", target, column, values, axis=0, reduction=reduction), x.shape)


def _at(x: Value, sizes: Sequence[int]) -> _Window:
    """A window of a tensor's own rank, moved inside where it would reach out."""
    axes = tuple(range(x.rank))
    return _Window(
        shape=x.shape,
        sizes=tuple(sizes),
        mapped=axes,
        squeezed=(),
        batching=(),
        index_batching=(),
        clips=True,
    )


def _index(g: Graph, starts: Sequence[Value]) -> Value:
    parts = [reshape(g, cast(g, start, _INT64), (1,)) for start in starts]
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=0)


def _dynamic_slice(
    g: Graph, expected: Expected, x: Value, *starts: Value, slice_sizes: Any, **_: Any
) -> Value:
    window = _at(x, slice_sizes)
    rows = window.rows(g, _index(g, starts))
    return reshape(g, g.op("Gather", reshape(g, x, (x.elements,)), rows, axis=0), expected.shape)


def _dynamic_update_slice(
    g: Graph, expected: Expected, x: Value, update: Value, *starts: Value, **_: Any
) -> Value:
    window = _at(x, update.shape)
    rows = reshape(g, window.rows(g, _index(g, starts)), (update.elements,))
    flat = reshape(g, x, (x.elements,))
    return reshape(
        g, g.op("ScatterElements", flat, rows, reshape(g, update, (update.elements,)), axis=0), x.shape
    )


TRANSLATIONS: Table = table(
    ("scatter", partial(scattered, None)),
    ("scatter_max", partial(scattered, "max")),
    ("scatter-max", partial(scattered, "max")),
    ("scatter_min", partial(scattered, "min")),
    ("scatter-min", partial(scattered, "min")),
    ("scatter_mul", partial(scattered, "mul")),
    ("scatter-mul", partial(scattered, "mul")),
    ("dynamic_slice", _dynamic_slice),
    ("dynamic_update_slice", _dynamic_update_slice),
)
