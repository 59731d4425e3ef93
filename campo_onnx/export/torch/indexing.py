"""Lookups and scatters."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from onnx import TensorProto

from campo_onnx.builder.compact import (
    cast,
    crop,
    elementwise,
    expand,
    full,
    reshape,
    scatter_add_rows,
    transpose,
)
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, operand
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_INT64 = int(TensorProto.INT64)
_BOOL = int(TensorProto.BOOL)


def _embedding_backward(
    g: Graph, expected: Expected, gradient: Value, indices: Value, count: int, padding: int,
    by_frequency: bool,
) -> Value:  # fmt: skip
    if by_frequency:
        raise UntranslatableError("scale_grad_by_freq=True", remedy="Leave it out.")
    flat = reshape(g, cast(g, indices, _INT64), (indices.elements,))
    rows = reshape(g, gradient, (indices.elements, gradient.shape[-1]))
    if padding >= 0:
        is_padding = elementwise(g, "Equal", flat, padding)
        column = reshape(g, is_padding, (indices.elements, 1))
        rows = elementwise(g, "Where", column, 0, rows)
    return scatter_add_rows(g, rows, flat, count)


def _gather(g: Graph, expected: Expected, x: Value, dim: int, index: Value, **_: Any) -> Value:
    # ONNX wants the other axes to be of equal length; torch lets the index be shorter.
    ends = [n if i == dim % x.rank else m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))]
    return g.op("GatherElements", crop(g, x, [0] * x.rank, ends), index, axis=dim % x.rank)


def _scatter(
    g: Graph, expected: Expected, x: Value, dim: int, index: Value, source: Any, *, reduce: str = ""
) -> Value:
    updates = operand(g, source, x.dtype)
    if updates.rank == index.rank:  # torch lets the index be shorter
        updates = crop(g, updates, [0] * index.rank, index.shape)
    updates = expand(g, updates, index.shape)
    reduction = _REDUCTIONS[reduce][0] if reduce else None
    return g.op("ScatterElements", x, index, updates, axis=dim % x.rank, reduction=reduction)


def _index_reduce(
    g: Graph, expected: Expected, x: Value, dim: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Value:  # fmt: skip
    line = [1] * source.rank
    line[dim] = index.elements
    places = expand(g, reshape(g, cast(g, index, _INT64), line), source.shape)
    return _scatter_reduce(g, expected, x, dim, places, source, reduce, include_self=include_self)


_REDUCTIONS = {
    "sum": ("add", 0.0),
    "add": ("add", 0.0),
    "prod": ("mul", 1.0),
    "multiply": ("mul", 1.0),
    "amax": ("max", -math.inf),
    "amin": ("min", math.inf),
}


def _scatter_reduce(
    g: Graph, expected: Expected, x: Value, dim: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Value:  # fmt: skip
    """Combine what goes to one place, with what is there already or without."""
    if index.shape != source.shape:
        source = crop(g, source, [0] * source.rank, list(index.shape))
    axis = dim % max(x.rank, 1)
    if reduce == "mean":
        return _scatter_mean(g, x, axis, index, source, include_self)
    kind, neutral = _REDUCTIONS[reduce]
    if not include_self:
        if not x.is_float:
            raise UntranslatableError("include_self=False on integers")
        x = g.op("ScatterElements", x, index, full(g, index.shape, neutral, x.dtype), axis=axis)
    return g.op("ScatterElements", x, index, source, axis=axis, reduction=kind)


def _scatter_mean(g: Graph, x: Value, axis: int, index: Value, source: Value, include_self: bool) -> Value:
    if not x.is_float:
        raise UntranslatableError("a mean of integers")
    ones = full(g, index.shape, 1, x.dtype)
    if not include_self:
        x = g.op("ScatterElements", x, index, full(g, index.shape, 0, x.dtype), axis=axis)
    total = g.op("ScatterElements", x, index, source, axis=axis, reduction="add")
    first = full(g, x.shape, 1 if include_self else 0, x.dtype)
    count = g.op("ScatterElements", first, index, ones, axis=axis, reduction="add")
    return total / elementwise(g, "Max", count, 1)


def _index(g: Graph, expected: Expected, x: Value, indices: Sequence[Value | None]) -> Value:
    order, indices = _indexed_first(indices, x.rank)
    x = transpose(g, x, order)
    first, last, flat = _flat_index(g, x.shape, indices)
    merged = reshape(g, x, (*x.shape[:first], math.prod(x.shape[first:last]), *x.shape[last:]))
    return g.op("Gather", merged, flat, axis=first)


def _indexed_first(indices: Sequence[Value | None], rank: int) -> tuple[list[int], Sequence[Value | None]]:
    """Give an order of axes in which those with an index are next to each other, and the indices in it.

    They come first where they are apart, as in the result that torch gives.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if axes[-1] - axes[0] < len(axes):
        return list(range(rank)), indices
    order = axes + [axis for axis in range(rank) if axis not in axes]
    return order, [indices[axis] for axis in axes]


def _flat_index(g: Graph, shape: Sequence[int], indices: Sequence[Value | None]) -> tuple[int, int, Value]:
    """Turn indices on the axes from `first` to `last` (exclusive) into one on those axes merged."""
    indexed = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    first, last = indexed[0][0], indexed[-1][0] + 1
    if any(index.dtype == _BOOL for _, index in indexed):
        raise UntranslatableError(
            "a Boolean mask as an index: how many elements it takes depends on the data",
            remedy="Keep all elements, and choose with torch.where or multiply by the mask.",
        )
    flat = g.scalar(0, _INT64)
    for axis, index in indexed:
        flat = flat * g.scalar(shape[axis], _INT64) + _from_the_start(g, index, shape[axis])
    return first, last, flat


def _from_the_start(g: Graph, index: Value, size: int) -> Value:
    """Count an index from the start of an axis that may count from its end."""
    place = cast(g, index, _INT64)
    return elementwise(g, "Where", place < 0, place + g.scalar(size, _INT64), place)


def _index_put(
    g: Graph, expected: Expected, x: Value, indices: Sequence[Value | None], values: Value,
    accumulate: bool = False,
) -> Value:  # fmt: skip
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype == _BOOL:
        return _masked_put(g, x, mask, values, accumulate)
    order, indices = _indexed_first(indices, x.rank)
    moved = transpose(g, x, order)
    first, last, flat = _flat_index(g, moved.shape, indices)
    written = _put_rows(g, moved, first, last, flat, operand(g, values, x.dtype), accumulate)
    return transpose(g, written, [order.index(axis) for axis in range(x.rank)])


def _put_rows(
    g: Graph, x: Value, first: int, last: int, flat: Value, values: Value, accumulate: bool
) -> Value:
    """Write rows, or add them, at indices of the axes from `first` to `last` (exclusive) merged into one."""
    leading, count = math.prod(x.shape[:first]), math.prod(x.shape[first:last])
    width = math.prod(x.shape[last:])
    values = expand(g, values, (*x.shape[:first], *flat.shape, *x.shape[last:]))
    rows = transpose(g, reshape(g, values, (leading, flat.elements, width)), [1, 0, 2])
    rows = reshape(g, rows, (flat.elements, leading * width))
    target = transpose(g, reshape(g, x, (leading, count, width)), [1, 0, 2])
    target = reshape(g, target, (count, leading * width))
    # Not ScatterND: with repeated indices it loses updates on the CPU provider's second thread.
    column = expand(g, reshape(g, flat, (flat.elements, 1)), rows.shape)
    reduction = "add" if accumulate else None
    written = g.op("ScatterElements", target, column, rows, axis=0, reduction=reduction)
    by_leading = transpose(g, reshape(g, written, (count, leading, width)), [1, 0, 2])
    return reshape(g, by_leading, x.shape)


def _index_add(
    g: Graph, expected: Expected, x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1
) -> Value:
    return _put_along(g, x, dim, index, source if alpha == 1 else source * alpha, accumulate=True)


def _index_fill(g: Graph, expected: Expected, x: Value, dim: int, index: Value, value: Any) -> Value:
    index = _from_the_start(g, index, x.shape[dim] if x.rank else 1)
    return _put_along(g, x, dim, index, reshape(g, operand(g, value, x.dtype), ()), accumulate=False)


def _put_along(g: Graph, x: Value, dim: int, index: Value, source: Value, *, accumulate: bool) -> Value:
    line = x if x.rank else reshape(g, x, (1,))
    axis, flat = dim % line.rank, reshape(g, cast(g, index, _INT64), (index.elements,))
    if source.rank == 0:
        source = expand(g, source, (*line.shape[:axis], flat.elements, *line.shape[axis + 1 :]))
    return reshape(g, _put_rows(g, line, axis, axis + 1, flat, source, accumulate), x.shape)


def _put(
    g: Graph, expected: Expected, x: Value, index: Value, source: Value, accumulate: bool = False
) -> Value:
    flat = reshape(g, x, (x.elements,))
    return reshape(g, _index_put(g, expected, flat, [index], source, accumulate), x.shape)


def _masked_put(g: Graph, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    if values.elements != 1 or accumulate:
        raise UntranslatableError(
            "a Boolean mask as an index, with a value for each element that it takes",
            remedy="Give a value for every element, and choose with torch.where.",
        )
    mask = reshape(g, mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
    return elementwise(g, "Where", mask, reshape(g, cast(g, values, x.dtype), ()), x)


TRANSLATIONS: Table = table(
    (aten.embedding.default, lambda g, e, weight, indices, *_: g.op("Gather", weight, indices, axis=0)),
    (aten.embedding_dense_backward.default, _embedding_backward),
    (aten.gather.default, _gather),
    ((aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce), _scatter),
    (aten.scatter_add.default, partial(_scatter, reduce="add")),
    (aten.scatter_reduce.two, _scatter_reduce),
    (aten.index_reduce.default, _index_reduce),
    (aten.index_select.default, lambda g, e, x, dim, index: g.op("Gather", x, index, axis=dim % x.rank)),
    (aten.put.default, _put),
    (aten.index_add.default, _index_add),
    (aten.index_copy.default, lambda g, e, *operands: _put_along(g, *operands, accumulate=False)),
    ((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    (aten.index.Tensor, _index),
    ((aten.index_put.default, aten._unsafe_index_put.default), _index_put),
)
