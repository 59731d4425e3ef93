"""Flat buffers: one tensor per role (weights, each optimizer state, gradients), each parameter in a slice.

An update that runs on flat tensors takes a dozen nodes for the whole network instead of a dozen for each
parameter. The gradient graph is bound to the slices, so nothing is copied together or apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.training.weight_update import ParameterGroup

ROW = 1024
"""Elements in a row; flat tensors are declared as (rows, ROW), and a parameter begins with a row of its own.

So slices are aligned far beyond what any kernel asks for, and norms of single tensors are sums of rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Place of one parameter: the first element of its first row, its shape, and its axes as they lie."""

    first: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """Its shape as it lies."""
        return tuple(self.shape[axis] for axis in self.order)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Rows it takes, the last one perhaps in part."""
        return -(-self.elements // ROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The parameters of one group, which lie one after the other."""

    group: ParameterGroup | None  # their settings; None for parameters of no group
    parameters: tuple[str, ...]
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLayout:
    """Place of each parameter in a flat tensor; the same in all roles."""

    slices: Mapping[str, Slice]
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """Rows of a flat tensor."""
        return sum(segment.rows for segment in self.segments)

    def packed(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Lay arrays into a flat tensor; what lies between them is zero."""
        flat = np.zeros(self.rows * ROW, np.float32)
        for name, place in self.slices.items():
            flat[place.first : place.first + place.elements] = arrays[name].transpose(place.order).reshape(-1)
        return flat

    def unpacked(self, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Give each parameter's part of a flat tensor, without a copy: with the strides it has there."""
        flat = flat.reshape(-1)
        return {
            name: in_order(
                flat[place.first : place.first + place.elements].reshape(place.stored), place.order
            )
            for name, place in self.slices.items()
        }

    def tensor_of_row(self, segment: Segment) -> NDArray[np.int64]:
        """Number the parameters of a segment, and give the number for each of its rows."""
        rows = [self.slices[name].rows for name in segment.parameters]
        return np.repeat(np.arange(len(rows)), rows)


def in_order(array: NDArray[Any], order: Sequence[int]) -> NDArray[Any]:
    """View an array whose axes lie in this order as it was before."""
    return array.transpose(np.argsort(order))


def flat_layout(
    shapes: Mapping[str, tuple[int, ...]],
    groups: Sequence[ParameterGroup] = (),
    orders: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> FlatLayout:
    """Lay parameters one after the other, group by group.

    A parameter belongs to the first group that holds it; the rest come first, as a segment of their own.
    `orders` say how the axes of a parameter lie, by name; as in its shape where none is given.

    >>> layout = flat_layout({"w": (40, 40), "b": (40,)}, [ParameterGroup(parameters=("b$",))])
    >>> [(segment.parameters, segment.first_row, segment.rows) for segment in layout.segments]
    [(('w',), 0, 2), (('b',), 2, 1)]
    """
    owner = {name: next((g for g in groups if g.holds(name)), None) for name in shapes}
    for group in groups:
        if group not in owner.values():
            raise UsageError(
                f"no parameter is left for the group {', '.join(group.parameters)}",
                why="its expressions match no name, or an earlier group holds all that they match",
                remedy=f"Parameters: {', '.join(shapes)}.",
            )
    slices: dict[str, Slice] = {}
    segments: list[Segment] = []
    row = 0
    for own in (None, *groups):
        names = tuple(name for name in shapes if owner[name] is own)
        first_row = row
        for name in names:
            shape = shapes[name]
            order = orders.get(name, tuple(range(len(shape))))
            slices[name] = Slice(first=row * ROW, shape=shape, order=order)
            row += slices[name].rows
        if names:
            segments.append(Segment(group=own, parameters=names, first_row=first_row, rows=row - first_row))
    return FlatLayout(slices=MappingProxyType(slices), segments=tuple(segments))
