"""Gather and scatter in all generality: which rows of the flattened tensor each index means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode
from onnx import TensorProto

from campo_onnx.builder.compact import (
    cast,
    crop,
    elementwise,
    expand,
    full,
    pad,
    reshape,
    scatter_add_rows,
    sliced,
    transpose,
)
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected, Table, table

_INT64 = int(TensorProto.INT64)
_BOOL = int(TensorProto.BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A window into a tensor, and where indices put it.

    `batching` and `index_batching` are axes that tensor and indices share. `mode` says what becomes of a
    window that would reach out: it is moved inside, or read as the value to fill with and not written at all,
    or promised not to occur.
    """

    shape: tuple[int, ...]  # of the tensor
    sizes: tuple[int, ...]  # of the window along each axis
    mapped: tuple[int, ...]  # the axis that each number of an index is for
    squeezed: tuple[int, ...]  # axes along which the window is 1 and which it does not have
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    mode: GatherScatterMode

    @property
    def is_first(self) -> bool:
        """Whether the first axis alone is looked up in: a broken promise ends in an error there.

        Along others it would reach the next row: XLA reads the nearest element, and writes nothing.
        """
        return self.mapped == (0,) and not self.batching

    @property
    def axes(self) -> list[int]:
        """The axes that the window has."""
        return [i for i in range(len(self.shape)) if i not in (*self.squeezed, *self.batching)]

    @property
    def whole(self) -> int:
        """Number of last axes that it spans in full."""
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

    def inside(self, g: Graph, indices: Value, *, writes: bool = False) -> Value | None:
        """Say for each index whether its window lies inside; None where all do, or it does not matter."""
        drops = writes and not self.is_first and self.mode == GatherScatterMode.PROMISE_IN_BOUNDS
        if not drops and self.mode != GatherScatterMode.FILL_OR_DROP:
            return None
        indices = cast(g, indices, _INT64)
        verdict = None
        for position, axis in enumerate(self.mapped):
            start = _column(g, indices, position)
            if self._is_inside(start, axis):
                continue
            for condition in (start >= 0, start <= self.shape[axis] - self.sizes[axis]):
                verdict = condition if verdict is None else elementwise(g, "And", verdict, condition)
        return verdict

    def _is_inside(self, start: Value, axis: int) -> bool:
        """Whether the first elements along an axis are constants, and right."""
        last = self.shape[axis] - self.sizes[axis]
        return start.constant is not None and bool(np.all((start.constant >= 0) & (start.constant <= last)))

    def start(self, g: Graph, indices: Value, position: int) -> Value:
        """Give where the window of each index begins along one of the mapped axes, moved inside."""
        start, axis = _column(g, cast(g, indices, _INT64), position), self.mapped[position]
        fails_outside = self.is_first and self.mode == GatherScatterMode.PROMISE_IN_BOUNDS
        if fails_outside or self._is_inside(start, axis):
            return start
        last = self.shape[axis] - self.sizes[axis]
        return elementwise(g, "Min", elementwise(g, "Max", start, 0), last)

    def picks(self, indices: Value) -> tuple[int, ...] | None:
        """Give the shape of indices that pick single elements along the last axis; None for any others."""
        leading = tuple(range(len(self.shape) - 1))
        if (
            self.mapped != (len(leading),)
            or (self.batching, self.index_batching) != (leading, leading)
            or any(size != 1 for size in self.sizes)
            or self.axes
        ):
            return None
        return (*self.shape[:-1], math.prod(indices.shape[len(leading) : -1]))

    def rows(self, g: Graph, indices: Value) -> Value:
        """Give the numbers of the rows of the window for each index."""
        batch = indices.shape[:-1]
        steps = [math.prod(self.shape[i + 1 :]) // self.width for i in range(len(self.shape))]
        total = g.constant(np.zeros((1,) * len(batch), np.int64))
        for position, axis in enumerate(self.mapped):
            start = self.start(g, indices, position)
            if steps[axis] != 1:
                start = start * steps[axis]
            total = total + start
        for axis, along in zip(self.batching, self.index_batching, strict=True):
            line = np.arange(batch[along], dtype=np.int64) * steps[axis]
            aligned = [-1 if i == along else 1 for i in range(len(batch))]
            total = total + g.constant(line.reshape(aligned))
        inner = [i for i in self.axes if i < len(self.shape) - self.whole]
        offsets = np.zeros((), np.int64)
        for axis in inner:
            offsets = np.add.outer(offsets, np.arange(self.sizes[axis], dtype=np.int64) * steps[axis])
        total = reshape(g, expand(g, total, batch), (*batch, *[1] * len(inner)))
        return total + g.constant(offsets) if inner else total


def _column(g: Graph, indices: Value, position: int) -> Value:
    return reshape(g, sliced(g, indices, indices.rank - 1, position, position + 1), indices.shape[:-1])


def _gathered(
    g: Graph, expected: Expected, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Any,
    mode: GatherScatterMode, fill_value: Any,
) -> Value:  # fmt: skip
    """Look up whole rows, one element per row, or windows."""
    d = dimension_numbers
    window = _Window(
        shape=x.shape,
        sizes=tuple(slice_sizes),
        mapped=tuple(d.start_index_map),
        squeezed=tuple(d.collapsed_slice_dims),
        batching=tuple(d.operand_batching_dims),
        index_batching=tuple(d.start_indices_batching_dims),
        mode=mode,
    )
    picks, batch = window.picks(indices), indices.shape[:-1]
    if picks is not None:
        index = reshape(g, window.start(g, indices, 0), picks)
        looked_up = reshape(g, g.op("GatherElements", x, index, axis=x.rank - 1), expected.shape)
    else:
        is_of_rows = window.width == math.prod(x.shape[1:])
        rows = x if is_of_rows else reshape(g, x, (x.elements // window.width, window.width))
        apart = g.op("Gather", rows, window.rows(g, indices), axis=0)
        apart = reshape(g, apart, (*batch, *(window.sizes[i] for i in window.axes)))
        looked_up = transpose(g, apart, _interleaved(len(batch), d.offset_dims, len(expected.shape)))
    inside = window.inside(g, indices)
    if inside is None:
        return looked_up
    aligned = [1 if i in d.offset_dims else n for i, n in enumerate(expected.shape)]
    filling = g.constant(np.asarray(_filling(fill_value, looked_up), looked_up.numpy_dtype))
    return elementwise(g, "Where", reshape(g, inside, aligned), looked_up, filling)


def _filling(value: Any, x: Value) -> Any:
    """Give what is read outside: as in JAX NaN, True, the smallest signed or the largest unsigned integer."""
    if value is not None:
        return value
    if x.is_float:
        return np.nan
    if x.dtype == _BOOL:
        return True
    limits = np.iinfo(x.numpy_dtype)
    return limits.min if limits.min < 0 else limits.max


def _interleaved(batch: int, window_dims: Sequence[int], rank: int) -> list[int]:
    """Order axes that are (batch, window) so that those of the window are at `window_dims`."""
    of_batch, of_window = iter(range(batch)), iter(range(batch, rank))
    return [next(of_window) if i in window_dims else next(of_batch) for i in range(rank)]


def _scattered(
    reduction: str | None, g: Graph, expected: Expected, x: Value, indices: Value, updates: Value, *,
    dimension_numbers: Any, mode: GatherScatterMode,
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
        mode=mode,
    )
    outer = [i for i in range(updates.rank) if i not in d.update_window_dims]
    inside = window.inside(g, indices, writes=True)
    if inside is not None and reduction == "add":  # nothing is added where nothing is to be written
        aligned = [1 if i in d.update_window_dims else n for i, n in enumerate(updates.shape)]
        updates = elementwise(g, "Where", reshape(g, inside, aligned), updates, 0)
        inside = None
    picks = window.picks(indices)
    if picks is not None and inside is None:
        index, values = reshape(g, window.start(g, indices, 0), picks), reshape(g, updates, picks)
        return g.op("ScatterElements", x, index, values, axis=x.rank - 1, reduction=reduction)
    rows, count = window.rows(g, indices), x.elements // window.width
    values = reshape(g, transpose(g, updates, [*outer, *d.update_window_dims]), (rows.elements, window.width))
    index = reshape(g, rows, (rows.elements,))
    if reduction == "add":
        added = reshape(g, scatter_add_rows(g, values, index, count), x.shape)
        return added if full(g, x.shape, 0, x.dtype) is x else x + added
    target = reshape(g, x, (count, window.width))
    if inside is not None:  # what is not to be written goes to a row behind the last
        per_row = reshape(g, inside, (*inside.shape, *[1] * (rows.rank - inside.rank)))
        index = elementwise(g, "Where", per_row, rows, count)
        index, target = reshape(g, index, (rows.elements,)), pad(g, target, (0, 0), (1, 0))
    # Not ScatterND: with repeated indices it loses updates on the CPU provider's second thread.
    column = expand(g, reshape(g, index, (rows.elements, 1)), values.shape)
    written = g.op("ScatterElements", target, column, values, axis=0, reduction=reduction)
    return reshape(g, crop(g, written, (0, 0), (count, window.width)), x.shape)


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
        mode=GatherScatterMode.CLIP,
    )


def _index(g: Graph, starts: Sequence[Value]) -> Value:
    parts = [reshape(g, cast(g, start, _INT64), (1,)) for start in starts]
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=0)


def _dynamic_slice(g: Graph, expected: Expected, x: Value, *starts: Value, slice_sizes: Any) -> Value:
    window = _at(x, slice_sizes)
    rows = window.rows(g, _index(g, starts))
    return reshape(g, g.op("Gather", reshape(g, x, (x.elements,)), rows, axis=0), expected.shape)


def _dynamic_update_slice(g: Graph, expected: Expected, x: Value, update: Value, *starts: Value) -> Value:
    window = _at(x, update.shape)
    rows = reshape(g, window.rows(g, _index(g, starts)), (update.elements,))
    flat = reshape(g, x, (x.elements,))
    return reshape(
        g, g.op("ScatterElements", flat, rows, reshape(g, update, (update.elements,)), axis=0), x.shape
    )


TRANSLATIONS: Table = table(
    ("gather", _gathered),
    ("scatter", partial(_scattered, None)),
    (("scatter_add", "scatter-add"), partial(_scattered, "add")),
    (("scatter_max", "scatter-max"), partial(_scattered, "max")),
    (("scatter_min", "scatter-min"), partial(_scattered, "min")),
    (("scatter_mul", "scatter-mul"), partial(_scattered, "mul")),
    ("dynamic_slice", _dynamic_slice),
    ("dynamic_update_slice", _dynamic_update_slice),
)
