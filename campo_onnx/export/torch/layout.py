"""Operations that move elements, and the gradient of padding that repeats the border."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from campo_onnx.builder.compact import cast, concat, expand, pad, reduce, reshape, sliced, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, axes_of
from campo_onnx.export.translation import Expected, Table, table


def _cat(g: Graph, expected: Expected, parts: Sequence[Value], dim: int = 0) -> Value:
    parts = [cast(g, part, expected.dtype) for part in parts if part.shape != (0,)]
    return concat(g, parts, dim % parts[0].rank)


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


def _slice(
    g: Graph, expected: Expected, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    dim %= x.rank
    first, last = _bounds(x.shape[dim], start, end)
    return sliced(g, x, dim, first, last, step)


def _select(g: Graph, expected: Expected, x: Value, dim: int, index: int) -> Value:
    dim %= x.rank
    index %= x.shape[dim]
    return reshape(g, sliced(g, x, dim, index, index + 1), expected.shape)


def _placed(g: Graph, x: Value, size: int, dim: int, first: int) -> Value:
    """Put `x` at `first` along an axis of length `size` that is zero elsewhere."""
    before, after = [0] * x.rank, [0] * x.rank
    before[dim], after[dim] = first, size - first - x.shape[dim]
    return pad(g, x, before, after)


def _slice_backward(
    g: Graph, expected: Expected, gradient: Value, sizes: Sequence[int], dim: int, start: int, end: int,
    step: int,
) -> Value:  # fmt: skip
    dim %= gradient.rank
    first, _ = _bounds(sizes[dim], start, end)
    if step != 1:
        gradient = _spread(g, gradient, dim, step)
        gradient = sliced(g, gradient, dim, 0, min(gradient.shape[dim], sizes[dim] - first))
    return _placed(g, gradient, sizes[dim], dim, first)


def _spread(g: Graph, x: Value, dim: int, step: int) -> Value:
    """Put ``step - 1`` zeros behind every element along an axis."""
    column = reshape(g, x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]))
    wide = _placed(g, column, step, dim + 1, 0)
    return reshape(g, wide, (*x.shape[:dim], x.shape[dim] * step, *x.shape[dim + 1 :]))


def _select_backward(
    g: Graph, expected: Expected, gradient: Value, sizes: Sequence[int], dim: int, index: int
) -> Value:
    dim %= len(sizes)
    row = reshape(g, gradient, [1 if i == dim else n for i, n in enumerate(sizes)])
    return _placed(g, row, sizes[dim], dim, index % sizes[dim])


def _slice_scatter(
    g: Graph, expected: Expected, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Value:  # fmt: skip
    dim %= x.rank
    first, _ = _bounds(x.shape[dim], start, end)
    return written_to_slice(g, x, source, dim, first, step)


def written_to_slice(g: Graph, x: Value, source: Value, dim: int, first: int, step: int) -> Value:
    """Replace every `step`-th element of an axis from `first` on, as many as `source` has."""
    size, count = x.shape[dim], source.shape[dim]
    if source.elements == 0:
        return x
    before = sliced(g, x, dim, 0, first)
    if step == 1:
        return concat(g, [before, source, sliced(g, x, dim, first + count, size)], dim)
    # Each in front of those that stay between it and the next; behind the last there may be fewer.
    rows = count if first + count * step <= size else count - 1
    end = first + rows * step
    behind = [sliced(g, source, dim, rows, count), sliced(g, x, dim, end + count - rows, size)]
    if rows == 0:
        return concat(g, [before, *behind], dim)
    shape = (*x.shape[:dim], rows, step, *x.shape[dim + 1 :])
    gaps = sliced(g, reshape(g, sliced(g, x, dim, first, end), shape), dim + 1, 1, step)
    written = sliced(g, source, dim, 0, rows)
    column = reshape(g, written, (*x.shape[:dim], rows, 1, *x.shape[dim + 1 :]))
    mixed = reshape(g, concat(g, [column, gaps], dim + 1), (*x.shape[:dim], rows * step, *x.shape[dim + 1 :]))
    return concat(g, [before, mixed, *behind], dim)


def _select_scatter(g: Graph, expected: Expected, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.rank
    index %= x.shape[dim]
    row = reshape(g, source, [1 if i == dim else n for i, n in enumerate(x.shape)])
    return _slice_scatter(g, expected, x, row, dim, index, index + 1)


def _split(g: Graph, expected: Expected, x: Value, sizes: Sequence[int], dim: int = 0) -> list[Value]:
    dim %= x.rank
    ends = np.cumsum(sizes).tolist()
    return [sliced(g, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _constant_pad(g: Graph, expected: Expected, x: Value, widths: Sequence[int], value: float = 0) -> Value:
    before, after = [0] * x.rank, [0] * x.rank
    for i in range(len(widths) // 2):
        before[-1 - i], after[-1 - i] = widths[2 * i], widths[2 * i + 1]
    return pad(g, x, before, after, value)


def _repeat(g: Graph, expected: Expected, x: Value, repeats: Sequence[int]) -> Value:
    x = reshape(g, x, (*[1] * (len(repeats) - x.rank), *x.shape))
    return x if all(n == 1 for n in repeats) else g.op("Tile", x, g.integers(repeats))


def _flip(g: Graph, expected: Expected, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x  # where a Slice would take no axes for all
    axes = axes_of(x, dims)
    ends = g.integers([-n - 1 for n in (x.shape[a] for a in axes)])
    backwards = g.integers([-1] * len(axes))
    return g.op("Slice", x, backwards, ends, g.integers(axes), backwards)


def _arange(g: Graph, expected: Expected, start: float, end: float, step: float = 1, **_: Any) -> Value:
    return g.constant((start + step * np.arange(expected.shape[0])).astype(expected.numpy_dtype))


def _triangle_indices(
    upper: bool, g: Graph, expected: Expected, rows: int, columns: int, offset: int = 0, **_: Any
) -> Value:
    indices = np.triu_indices(rows, offset, columns) if upper else np.tril_indices(rows, offset, columns)
    return g.constant(np.stack(indices).astype(expected.numpy_dtype))


def _triangle(upper: int, g: Graph, expected: Expected, x: Value, diagonal: int = 0) -> Value:
    return g.op("Trilu", x, g.constant(np.int64(diagonal)), upper=upper)


_RESHAPES = (aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dims)


def _replicated_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, widths: tuple[int, ...]
) -> Value:
    for i in range(len(widths) // 2):
        axis = x.rank - 1 - i
        gradient = _of_inside(g, gradient, axis, x.shape[axis], widths[2 * i], widths[2 * i + 1])
    return gradient


def _of_inside(g: Graph, gradient: Value, axis: int, size: int, before: int, after: int) -> Value:
    """Add the gradient of what repeats the first and the last element to theirs; a negative width crops."""
    source = np.clip(np.arange(-before, size + after), 0, size - 1)
    first, last, length = int(source[0]), int(source[-1]), len(source)
    if first == last:
        inside = reduce(g, "ReduceSum", gradient, [axis], keepdims=True)
    else:
        ends = int((source == first).sum()), length - int((source == last).sum())
        head, tail = (sliced(g, gradient, axis, a, b) for a, b in ((0, ends[0]), (ends[1], length)))
        sums = [reduce(g, "ReduceSum", each, [axis], keepdims=True) for each in (head, tail)]
        inside = concat(g, [sums[0], sliced(g, gradient, axis, *ends), sums[1]], axis)
    in_front, behind = [0] * gradient.rank, [0] * gradient.rank
    in_front[axis], behind[axis] = first, size - 1 - last
    return pad(g, inside, in_front, behind)


TRANSLATIONS: Table = table(
    (_RESHAPES, lambda g, e, x, *_, **__: reshape(g, x, e.shape)),
    (aten.expand.default, lambda g, e, x, *_, **__: expand(g, x, e.shape)),
    (aten.permute.default, lambda g, e, x, dims: transpose(g, x, [d % x.rank for d in dims])),
    (aten.cat.default, _cat),
    (aten.slice.Tensor, _slice),
    (aten.select.int, _select),
    (aten.slice_backward.default, _slice_backward),
    (aten.select_backward.default, _select_backward),
    (aten.slice_scatter.default, _slice_scatter),
    (aten.select_scatter.default, _select_scatter),
    (aten.split_with_sizes.default, _split),
    (aten.constant_pad_nd.default, _constant_pad),
    (aten.repeat.default, _repeat),
    (aten.flip.default, _flip),
    (aten.arange.start_step, _arange),
    (aten.tril_indices.default, partial(_triangle_indices, False)),
    (aten.triu_indices.default, partial(_triangle_indices, True)),
    (aten.tril.default, partial(_triangle, 0)),
    (aten.triu.default, partial(_triangle, 1)),
    (
        (
            aten.replication_pad1d_backward.default,
            aten.replication_pad2d_backward.default,
            aten.replication_pad3d_backward.default,
        ),
        _replicated_backward,
    ),
)
