"""Views by places in memory, read and written as lines of memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """Look elements up by their place in memory; the result lies there as torch's, whose views follow."""
    start = x.storage_offset() if offset is None else offset
    same = all(n == 1 or a == b for n, a, b in zip(size, stride, x.stride(), strict=False))
    if list(size) == list(x.shape) and same and start == x.storage_offset():
        return x.view(x.shape)
    lines = _lines(x, size, stride, start)
    if lines is None:
        return NotImplemented
    memory, places, order = lines
    elements = memory.index_select(0, places).reshape([size[axis] for axis in order])
    return elements.permute([order.index(axis) for axis in range(len(order))])


def _as_strided_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    start = x.storage_offset() if offset is None else offset
    if [*size, *stride, start] == [*x.shape, *x.stride(), x.storage_offset()]:
        return source.clone()
    lines = _lines(x, size, stride, start) if x.is_contiguous() else None
    if lines is None:
        return NotImplemented
    memory, places, order = lines
    rows = source.permute(order).reshape(len(places), -1)
    return memory.index_copy(0, places, rows).reshape(x.shape)


def _lines(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], start: int
) -> tuple[torch.Tensor, torch.Tensor, list[int]] | None:
    """Cut memory into lines as long as all strides allow: all, those that are read, and the order of axes."""
    memory = x.permute(sorted(range(x.dim()), key=lambda axis: -x.stride(axis)))
    first = start - x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not memory.is_contiguous() or not (0 <= first <= last < x.numel()) or min(stride, default=0) < 0:
        return None
    order = sorted(range(len(size)), key=lambda axis: -stride[axis])
    axes = [(size[axis], stride[axis]) for axis in order]
    width = 1
    while axes and axes[-1][1] == width:
        wider = width * axes[-1][0]
        if first % wider or x.numel() % wider or any(step % wider for _, step in axes[:-1]):
            break
        width = wider
        axes.pop()
    place = torch.full((), first // width, dtype=torch.int64, device=x.device)
    for n, step in axes:
        place = place.unsqueeze(-1) + torch.arange(n, device=x.device) * (step // width)
    return memory.reshape(-1, width), place.reshape(-1), order


OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    aten.as_strided.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}
"""Operations that are replaced by others in the graph."""
