"""Operators that look elements up, put them elsewhere, or sort them."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import Node, Row, either, static
from campo_onnx.runtime.torch.translation.values import Array, ints, to_tensor

_SCATTERED: Mapping[str, str] = MappingProxyType({"mul": "prod", "max": "amax", "min": "amin"})


def from_front(index: Tensor, size: Any) -> Tensor:
    """Count negative indices from the front."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


def gather(node: Node, x: Tensor, index: Array | Tensor) -> Tensor:
    """Take slices along an axis."""
    axis = shifted(node.get("axis", 0), x.dim())
    if isinstance(index, np.ndarray):
        if index.ndim == 0:
            return x.select(axis, index.item())
        index = to_tensor(index, x.device)
    return torch.ops.aten.index.Tensor(x, [None] * axis + [index.to(torch.int64)])


def gather_elements(node: Node, x: Tensor, index: Tensor) -> Tensor:
    """Take an element for each index along an axis."""
    axis = shifted(node.get("axis", 0), x.dim())
    return torch.gather(x, axis, from_front(index, x.shape[axis]))


def scatter_elements(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """Put elements where the indices say along an axis, or combine them with what is there."""
    axis = shifted(node.get("axis", 0), x.dim())
    return scattered(x, axis, from_front(index, x.shape[axis]), updates, node.get("reduction", "none"))


def scattered(x: Tensor, axis: int, index: Tensor, updates: Tensor, how: str) -> Tensor:
    """Put elements along an axis; `how` is a reduction as ONNX names them."""
    if how == "none":
        return x.scatter(axis, index, updates)
    if how == "add":
        return x.scatter_add(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _SCATTERED[how])


def gather_nd(node: Node, x: Tensor, index: Tensor) -> Tensor:
    """Take the slices that the last axis of the indices names, within batches."""
    batch = node.get("batch_dims", 0)
    return torch.ops.aten.index.Tensor(x, nd_indices(index, batch))


def nd_indices(index: Tensor, batch: int) -> list[Tensor]:
    """List the index of every axis that the last axis of an index names, and those of the batch."""
    index = index.to(torch.int64)
    places = [index[..., axis] for axis in range(index.shape[-1])]
    rank = index.dim() - 1
    for axis in range(batch):
        counted = torch.arange(index.shape[axis], device=index.device)
        places.insert(axis, counted.reshape([-1 if i == axis else 1 for i in range(rank)]))
    return places


def scatter_nd(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """Put slices where the last axis of the indices says, or combine them with what is there."""
    how = node.get("reduction", "none")
    if how in ("none", "add"):
        places = nd_indices(index, 0)
        return torch.ops.aten.index_put.default(x, places, updates, how == "add")
    depth = index.shape[-1]
    rows = math.prod(x.shape[depth:])
    flat = torch.zeros(index.shape[:-1], dtype=torch.int64, device=x.device)
    for axis in range(depth):
        flat = flat * x.shape[axis] + from_front(index[..., axis], x.shape[axis])
    index = flat.reshape(-1, 1).expand(-1, rows)
    result = scattered(x.reshape(-1, rows), 0, index, updates.reshape(-1, rows), how)
    return result.reshape(x.shape)


def top_k(node: Node, x: Tensor, count: Array | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest or smallest elements; of equal ones the first."""
    axis = node.get("axis", -1)
    size = node.get("k") if count is None else ints(count)[0]
    values, places = torch.sort(x, dim=axis, descending=node.flag("largest", True), stable=True)
    return values.narrow(axis, 0, size), places.narrow(axis, 0, size)


def one_hot(node: Node, index: Tensor, depth: Array, values: Tensor) -> Tensor:
    """Put one value at an index, another one elsewhere."""
    size, axis = int(ints(depth)[0]), shifted(node.get("axis", -1), index.dim() + 1)
    place = from_front(index, size).unsqueeze(axis)
    counted = torch.arange(size, device=index.device)
    shape = [-1 if i == axis else 1 for i in range(index.dim() + 1)]
    return torch.where(counted.reshape(shape) == place, values[1], values[0])


def non_zero(node: Node, x: Tensor) -> Tensor:
    """List the places of elements that are not 0, a column each."""
    return torch.nonzero(x).t() if x.dim() else torch.nonzero(x.reshape(1))[:, :0].t()


def compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    """Take the slices of an axis, or elements, for which a condition holds."""
    axis = node.get("axis")
    places = torch.nonzero(condition).reshape(-1)
    return x.reshape(-1).index_select(0, places) if axis is None else x.index_select(axis, places)


def unique(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    """Return elements or slices once, their first places, the place of each in them, and their counts."""
    axis = node.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = shifted(axis, x.dim())
    values, places, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=axis)
    counted = torch.arange(x.shape[axis], device=x.device)
    first = torch.full_like(counts, x.shape[axis]).scatter_reduce(0, places, counted, "amin")
    if node.flag("sorted", True):
        return values, first, places, counts
    order = first.argsort()
    return values.index_select(axis, order), first[order], order.argsort()[places], counts[order]


def tensor_scatter(node: Node, past: Tensor, update: Tensor, first: Tensor | None = None) -> Tensor:
    """Write the new part of a cache at each sequence's place, around its end if that is asked for."""
    axis = shifted(node.get("axis", -2), past.dim())
    count, size, batch = update.shape[axis], past.shape[axis], past.shape[0]
    start = (
        torch.zeros(batch, dtype=torch.int64, device=past.device) if first is None else first.to(torch.int64)
    )
    places = start.unsqueeze(1) + torch.arange(count, device=past.device)
    places = places % size if node.get("mode", "linear") == "circular" else places
    shape = [1] * past.dim()
    shape[0], shape[axis] = batch, count
    return past.scatter(axis, places.reshape(shape).expand(update.shape), update)


def non_maximum_suppression(
    node: Node,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> Tensor:
    """List boxes by score, for each image and class, without those that overlap one before too much."""
    limit = 0 if most is None else ints(most)[0]
    share = 0.0 if overlap is None else overlap.item()
    bound = -math.inf if least is None else least.item()
    chosen = []
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image], is_centred=node.flag("center_point_box"))
        for label in range(scores.shape[1]):
            selected: list[int] = []
            for box in np.argsort(-scores[image, label], kind="stable").tolist():
                if len(selected) == limit or scores[image, label, box] <= bound:
                    break
                if all(_overlap(corners[box], corners[other]) <= share for other in selected):
                    selected.append(box)
            chosen += [[image, label, box] for box in selected]
    return torch.tensor(chosen, dtype=torch.int64, device=node.device).reshape(-1, 3)


def _corners(boxes: Array, *, is_centred: bool) -> Array:
    if is_centred:
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([centre - half, centre + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _overlap(one: Array, other: Array) -> float:
    """Return the area of two boxes' intersection over that of their union."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    union = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2])) - both
    return both / union if union > 0 else 0.0


ROWS = {
    "Compress": Row(compress),
    "Gather": either(1)(gather),
    "GatherElements": Row(gather_elements),
    "GatherND": Row(gather_nd),
    "NonMaxSuppression": static(0, 1, 2, 3, 4)(non_maximum_suppression),
    "NonZero": Row(non_zero),
    "OneHot": static(1)(one_hot),
    "Scatter": Row(scatter_elements),
    "ScatterElements": Row(scatter_elements),
    "ScatterND": Row(scatter_nd),
    "TensorScatter": Row(tensor_scatter),
    "TopK": static(1)(top_k),
    "Unique": Row(unique),
    "com.microsoft:GatherND": Row(gather_nd),
}
