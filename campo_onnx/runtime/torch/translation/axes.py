"""Axes, shapes and slices as nodes name them, in attributes or in inputs."""

from collections.abc import Iterator, Sequence
from typing import Any

from campo_onnx.runtime.torch.translation.node import Node
from campo_onnx.runtime.torch.translation.values import Array, ints


def shifted(axis: int, rank: int) -> int:
    """Count an axis from the front.

    >>> shifted(-1, 4), shifted(1, 4)
    (3, 1)
    """
    return axis + rank if axis < 0 else axis


def reversed_axes(rank: int) -> list[int]:
    """Return the axes from the last to the first."""
    return list(range(rank))[::-1]


def reduced_axes(node: Node, axes: Array | None, rank: int) -> list[int] | None:
    """List the axes that a node reduces, sorted: all where it names none, or None if it says so."""
    named = node.get("axes") if axes is None else ints(axes)
    if named:
        return sorted(shifted(axis, rank) for axis in named)
    return None if node.flag("noop_with_empty_axes") else list(range(rank))


def reshaped(node: Node, shape: Sequence[Any], sizes: Array | None) -> list[Any]:
    """Return the shape that a Reshape asks for: 0 takes the size at that place."""
    request = node.get("shape") if sizes is None else ints(sizes)
    if node.flag("allowzero"):
        return list(request)
    return [shape[axis] if _is_zero(size) else size for axis, size in enumerate(request)]


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0


def slices(
    node: Node,
    shape: Sequence[Any],
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Iterator[tuple[int, Any, Any, int]]:
    """Yield axis, first element, end and step of each slice, all counted forwards.

    A negative step says that the elements are to be turned around afterwards.
    """
    firsts = node.get("starts") if starts is None else ints(starts)
    lasts = node.get("ends") if ends is None else ints(ends)
    named = node.get("axes", list(range(len(firsts)))) if axes is None else ints(axes)
    strides = [1] * len(firsts) if steps is None else ints(steps)
    for start, end, axis, step in zip(firsts, lasts, named, strides, strict=True):
        place = shifted(axis, len(shape))
        if step > 0:
            yield place, start, end, step
        else:
            taken = range(shape[place])[start : _before_first(end, shape[place]) : step]
            yield place, *((taken[-1], taken[0] + 1) if taken else (0, 0)), step


def _before_first(end: int, size: int) -> int | None:
    """Return the end of a slice backwards as Python writes it: None stands before the first element."""
    return None if end < -size else end
