"""Resize: every output element is a weighted sum of input elements, an axis at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import Node, static
from campo_onnx.runtime.torch.translation.reductions import widened
from campo_onnx.runtime.torch.translation.values import Array, ints, to_tensor

_ROI_OPSET = 11  # from this one on, regions are an input; before, the second input is the scales
_REACH = {"linear": 1, "cubic": 2}  # input elements on both sides that a filter looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis that is resized."""

    place: int
    size: int  # of the input
    result: int  # of the output
    scale: float
    start: float  # region of the input, as shares of its size
    end: float


def resize(
    node: Node,
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Tensor:
    """Resize by scales or to sizes."""
    if node.version < _ROI_OPSET:
        roi, scales = None, roi
    result, mode = x, node.get("mode", "nearest")
    if not all(isinstance(size, int) for size in x.shape):
        raise node.refusal("sizes of the tensor that it resizes have to be known when the graph is compiled")
    outside: Tensor | None = None
    for axis in _axes(node, x.shape, roi, scales, sizes):
        crops = node.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if axis.result == axis.size and axis.scale == 1 and not crops:
            continue
        source = _sources(node, axis)
        if mode == "nearest":
            places = _nearest(node, axis, source).clip(0, axis.size - 1).astype(np.int64)
            result = result.index_select(axis.place, to_tensor(places, x.device))
        else:
            result = _filtered(node, axis, source, result, mode)
        if crops:
            beyond = to_tensor((source < 0) | (source > axis.size - 1), x.device)
            beyond = beyond.reshape([-1 if i == axis.place else 1 for i in range(x.dim())])
            outside = beyond if outside is None else outside | beyond
    result = result.to(x.dtype)
    if outside is None:
        return result
    filling = torch.full_like(result, node.get("extrapolation_value", 0.0))
    return torch.where(outside, filling, result)


def _axes(
    node: Node, shape: Sequence[int], roi: Array | None, scales: Array | None, sizes: Array | None
) -> list[Axis]:
    rank = len(shape)
    places = [shifted(axis, rank) for axis in node.get("axes", list(range(rank)))]
    lengths = [shape[place] for place in places]
    factors = node.get("scales") if scales is None else scales.reshape(-1).tolist()
    if sizes is not None and sizes.size:
        results = ints(sizes)
        by = [r / n for r, n in zip(results, lengths, strict=True)]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            by = [min(by) if policy == "not_larger" else max(by)] * len(by)
            results = [math.floor(n * by[0] + 0.5) for n in lengths]
    else:
        by = list(factors)
        results = [math.floor(n * s) for n, s in zip(lengths, by, strict=True)]
    count = len(places)
    region = [0.0] * count + [1.0] * count if roi is None or not roi.size else roi.reshape(-1).tolist()
    return [
        Axis(place=place, size=size, result=result, scale=scale, start=start, end=end)
        for place, size, result, scale, start, end in zip(
            places, lengths, results, by, region[:count], region[count:], strict=True
        )
    ]


def _sources(node: Node, axis: Axis) -> Array:
    """Return the places in the input of the elements of the output, in FP32 as ONNX Runtime computes them."""
    how = node.get(
        "coordinate_transformation_mode", "half_pixel" if node.version >= _ROI_OPSET else "asymmetric"
    )
    place, scale = np.arange(axis.result, dtype=np.float32), np.float32(axis.scale)
    half = np.float32(0.5)
    last, last_result = np.float32(axis.size - 1), np.float32(axis.result - 1)
    if how == "asymmetric":
        return place / scale
    if how == "align_corners":
        return place * last / last_result if axis.result > 1 else np.zeros_like(place)
    if how == "tf_half_pixel_for_nn":
        return (place + half) / scale
    if how == "tf_crop_and_resize":
        if axis.result == 1:
            return np.full_like(place, half * np.float32(axis.start + axis.end) * last)
        step = np.float32(axis.end - axis.start) * last / last_result
        return np.float32(axis.start) * last + place * step
    if how == "pytorch_half_pixel" and axis.result == 1:
        return np.zeros_like(place)
    centred = (place + half) / scale - half
    if how == "half_pixel_symmetric":
        adjustment = axis.result / (axis.scale * axis.size)
        return centred + np.float32(axis.size / 2 * (1 - adjustment))
    if how not in ("half_pixel", "pytorch_half_pixel"):
        raise node.refusal(f"its coordinate_transformation_mode {how!r} is not translated")
    return centred


def _nearest(node: Node, axis: Axis, source: Array) -> Array:
    if node.version < _ROI_OPSET:
        return np.ceil(source) if axis.scale < 1 else np.floor(source)
    how = node.get("nearest_mode", "round_prefer_floor")
    if how == "floor":
        return np.floor(source)
    if how == "ceil":
        return np.ceil(source)
    half = np.float32(0.5)
    return np.floor(source + half) if how == "round_prefer_ceil" else np.ceil(source - half)


def _filtered(node: Node, axis: Axis, source: Array, x: Tensor, mode: str) -> Tensor:
    """Add up the input elements near each place, by their weights."""
    narrowed = min(axis.scale, 1.0) if node.flag("antialias") else 1.0
    reach = math.ceil(_REACH[mode] / narrowed)
    first = np.floor(source).astype(np.int64) - reach + 1
    places = first[:, None] + np.arange(2 * reach)
    distances = np.abs(places - source.astype(np.float64)[:, None]) * narrowed
    weights = _weights(distances, mode, node.get("cubic_coeff_a", -0.75))
    if node.flag("exclude_outside"):
        weights = weights * ((places >= 0) & (places < axis.size))
    weights = weights / weights.sum(1, keepdims=True)
    places = places.clip(0, axis.size - 1)
    wide: Any = widened(x) if x.is_floating_point() else x.float()
    shape = [-1 if i == axis.place else 1 for i in range(x.dim())]
    total = None
    for tap in range(2 * reach):
        if not weights[:, tap].any():
            continue
        part = wide.index_select(axis.place, to_tensor(places[:, tap], x.device))
        part = part * to_tensor(weights[:, tap], x.device).to(wide.dtype).reshape(shape)
        total = part if total is None else total + part
    return wide if total is None else total


def _weights(distances: Array, mode: str, sharpness: float) -> Array:
    if mode == "linear":
        return np.clip(1 - distances, 0, None)
    a, d = sharpness, distances
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


ROWS = {"Resize": static(1, 2, 3)(resize), "Upsample": static(1)(resize)}
