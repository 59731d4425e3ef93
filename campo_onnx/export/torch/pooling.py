"""Pooling and resampling, with their gradients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from campo_onnx.builder.compact import elementwise, full, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, pair
from campo_onnx.export.translation import Expected, Table, Translation, UntranslatableError, table
from campo_onnx.lowering.unpooling import are_tiles

Matrix = NDArray[np.float64]

_FEW = 1 << 12
"""Numbers in one matrix for all axes, at most: of maps of 2 x 2 to 6 x 6 that takes a ninth of the time of a
product for each axis, a map at a time; of 6 x 6 to 12 x 12 still half (512 maps, a thread of an EPYC)."""


def _max_pool(
    g: Graph, expected: Expected, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
) -> tuple[Value, ...]:  # fmt: skip
    count = x.rank - 2
    y, place = g.ops("MaxPool", x, outputs=2, **_window(count, kernel, stride, padding, dilation, ceil_mode))
    # ONNX numbers the elements of the whole tensor, torch those of one channel of an image.
    return y, elementwise(g, "Mod", place, math.prod(x.shape[2:]))


def _as_batch(
    count: int, translation: Translation, g: Graph, expected: Expected, *operands: Any, **settings: Any
) -> Value | Sequence[Value | None]:
    """Let a pool over `count` axes, or its gradient, take one image without a batch for a batch of one."""
    if len(expected.shape) != count + 1:
        return translation(g, expected, *operands, **settings)
    batch = [reshape(g, x, (1, *x.shape)) if isinstance(x, Value) else x for x in operands]
    pooled = translation(g, replace(expected, shape=(1, *expected.shape)), *batch, **settings)
    if isinstance(pooled, Value):
        return reshape(g, pooled, pooled.shape[1:])
    return [y and reshape(g, y, y.shape[1:]) for y in pooled]


def _window(
    count: int, kernel: Sequence[int], stride: Sequence[int], padding: int | Sequence[int],
    dilation: int | Sequence[int], ceil_mode: bool,
) -> dict[str, Any]:  # fmt: skip
    pads = pair(padding, count)
    return {
        "kernel_shape": pair(kernel, count),
        "strides": pair(stride, count) if stride else pair(kernel, count),
        "pads": [*pads, *pads],
        "dilations": pair(dilation, count),
        "ceil_mode": int(ceil_mode),
    }


def _max_pool_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
    padding: int | Sequence[int], dilation: int | Sequence[int], ceil_mode: bool, indices: Value,
) -> Value:  # fmt: skip
    window = _window(x.rank - 2, kernel, stride, padding, dilation, ceil_mode)
    place = _place_in_tensor(g, x, indices)
    zeros = full(g, (x.elements,), 0, gradient.dtype)
    flat, source = (reshape(g, value, (value.elements,)) for value in (place, gradient))
    # Where no two gradients meet in a place, a GPU need not add them atomically.
    reduction = None if are_tiles(window, x.shape[2:]) else "add"
    return reshape(g, g.op("ScatterElements", zeros, flat, source, axis=0, reduction=reduction), x.shape)


def _place_in_tensor(g: Graph, x: Value, indices: Value) -> Value:
    """Number the elements of the whole tensor: as the forward pass did before it counted as torch does."""
    taken = g.producer(indices, "Mod")
    place = taken.inputs[0] if taken is not None else None
    producer = g.source(place) if place is not None else None
    if place is not None and producer is not None and producer.op_type == "MaxPool":
        return place
    images, size = math.prod(x.shape[:2]), math.prod(x.shape[2:])
    first = np.arange(images, dtype=np.int64).reshape(*x.shape[:2], *[1] * (x.rank - 2)) * size
    return indices + g.constant(first)


def _avg_pool(
    g: Graph, expected: Expected, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:  # fmt: skip
    count = max(2, len(kernel))
    sizes, pads = pair(kernel, count), pair(padding, count)
    if ceil_mode or divisor_override is not None:
        shapes = x.shape[-count:], expected.shape[-count:]
        matrices = _average_matrices(*shapes, kernel, stride, padding, count_include_pad, divisor_override)
        return _separable(g, x, matrices)
    return g.op(
        "AveragePool",
        x,
        kernel_shape=sizes,
        strides=pair(stride, count) if stride else sizes,
        pads=[*pads, *pads],
        count_include_pad=int(count_include_pad),
    )


def _avg_pool_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
    padding: int | Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    count = max(2, len(kernel))
    sizes, pads = pair(kernel, count), pair(padding, count)
    counts_all = count_include_pad or not any(pads)
    if set(pair(stride, count) if stride else sizes) == {1} and counts_all and divisor_override is None:
        # Each element is read by as many windows as a window has elements: it is an average again.
        ends = [size - 1 - width for size, width in zip(sizes, pads, strict=True)]
        attributes = {"kernel_shape": sizes, "strides": [1] * count, "count_include_pad": 1}
        return g.op("AveragePool", gradient, pads=[*ends, *ends], **attributes)
    shapes = x.shape[-count:], gradient.shape[-count:]
    matrices = _average_matrices(*shapes, kernel, stride, padding, count_include_pad, divisor_override)
    return _separable(g, gradient, [matrix.T for matrix in matrices])


def _average_matrices(
    inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    padding: int | Sequence[int], count_include_pad: bool, divisor: int | None,
) -> list[Matrix]:  # fmt: skip
    """Give the matrices (outputs, inputs) that average along each spatial axis."""
    sizes, pads = pair(kernel, len(inputs)), pair(padding, len(inputs))
    strides = pair(stride, len(inputs)) if stride else sizes
    matrices = []
    for n, m, k, s, p in zip(inputs, outputs, sizes, strides, pads, strict=True):
        matrix = np.zeros((m, n))
        for i in range(m):
            first, last = i * s - p, min(i * s - p + k, n + p)
            inside = slice(max(first, 0), min(last, n))
            count = last - first if count_include_pad else inside.stop - inside.start
            matrix[i, inside] = 1 if divisor is not None else 1 / count
        matrices.append(matrix)
    if divisor is not None:
        matrices[0] /= divisor
    return matrices


def _adaptive_avg_pool(g: Graph, expected: Expected, x: Value, size: Sequence[int]) -> Value:
    count = len(size)
    return _separable(g, x, _adaptive_matrices(x.shape[-count:], expected.shape[-count:]))


def _adaptive_avg_pool_backward(count: int, g: Graph, expected: Expected, gradient: Value, x: Value) -> Value:
    matrices = _adaptive_matrices(x.shape[-count:], gradient.shape[-count:])
    return _separable(g, gradient, [matrix.T for matrix in matrices])


def _adaptive_matrices(inputs: Sequence[int], outputs: Sequence[int]) -> list[Matrix]:
    matrices = []
    for n, m in zip(inputs, outputs, strict=True):
        matrix = np.zeros((m, n))
        for i in range(m):
            first, last = i * n // m, -(-(i + 1) * n // m)
            matrix[i, first:last] = 1 / (last - first)
        matrices.append(matrix)
    return matrices


def _separable(g: Graph, x: Value, matrices: Sequence[Matrix]) -> Value:
    """Apply a linear map that works on each of the last axes apart: products with constants."""
    changes = [not np.array_equal(matrix, np.eye(len(matrix))) for matrix in matrices]
    if any(changes[:-1]) and math.prod(matrix.size for matrix in matrices) <= _FEW:
        outer, sizes = x.shape[: -len(matrices)], [matrix.shape[0] for matrix in matrices]
        whole: NDArray[Any] = np.ones((1, 1))
        for matrix in matrices:
            whole = np.kron(whole, matrix)
        flat = reshape(g, x, (math.prod(outer), whole.shape[1]))
        mapped = g.op("MatMul", flat, g.constant(whole.T.astype(x.numpy_dtype)))
        return reshape(g, mapped, (*outer, *sizes))
    for axis, matrix in enumerate(matrices, x.rank - len(matrices)):
        if not changes[axis - x.rank]:
            continue
        if axis == x.rank - 1:
            x = g.op("MatMul", x, g.constant(matrix.T.astype(x.numpy_dtype)))
            continue
        shape, behind = x.shape, x.shape[axis + 1 :]
        rows = x if len(behind) == 1 else reshape(g, x, (*shape[: axis + 1], math.prod(behind)))
        mapped = g.op("MatMul", g.constant(matrix.astype(x.numpy_dtype)), rows)
        x = reshape(g, mapped, (*shape[:axis], matrix.shape[0], *behind))
    return x


_LARGEST_MATRIX = 1 << 24
"""Numbers in the constant that resamples one axis: 64 MiB of the file."""


def _interpolation(mode: str, n: int, m: int, scale: float | None, align_corners: bool | None) -> Matrix:
    """Give the matrix (outputs, inputs) of one axis by resampling the unit vectors."""
    if n * m > _LARGEST_MATRIX:
        raise UntranslatableError(
            f"an axis of {n:,} elements is resampled to {m:,} by a constant matrix of {n * m:,} numbers",
            remedy="Resample before the step, or by a shorter axis at a time.",
        )
    mode, _, antialiased = mode.partition(" ")
    if mode.startswith("bi"):  # torch has it for two axes only; along the other there is one element
        unit = torch.eye(n, dtype=torch.float64)[None, :, None]
        sizes: dict[str, Any] = {"size": (1, m)} if scale is None else {"scale_factor": (1.0, scale)}
    else:
        unit = torch.eye(n, dtype=torch.float64)[None]
        sizes = {"size": m} if scale is None else {"scale_factor": scale}
    if scale is not None:
        sizes["recompute_scale_factor"] = False
    if antialiased:
        sizes["antialias"] = True
    resampled = torch.nn.functional.interpolate(unit, mode=mode, align_corners=align_corners, **sizes)
    if resampled.shape[-1] != m:
        raise UntranslatableError(f"scale factor {scale} from {n} to {m}")
    matrix: Matrix = resampled.reshape(n, m).T.numpy()
    return matrix


def _resampled(
    mode: str, g: Graph, expected: Expected, x: Value, size: Any, *how: Any, **named: Any
) -> Value:
    return _separable(g, x, _resampling(mode, x.shape, expected.shape, how, named))


def _resampled_backward(
    mode: str, g: Graph, expected: Expected, gradient: Value, size: Any, input_size: Any, *how: Any,
    **named: Any,
) -> Value:  # fmt: skip
    matrices = _resampling(mode, expected.shape, gradient.shape, how, named)
    return _separable(g, gradient, [matrix.T for matrix in matrices])


def _resampling(
    mode: str, inputs: Sequence[int], outputs: Sequence[int], how: Sequence[Any], named: Mapping[str, Any]
) -> list[Matrix]:
    """Give the matrices of all axes.

    `mode` is as ``torch.nn.functional.interpolate`` calls it, and whether it is antialiased; `how` and
    `named` are ``align_corners``, where the mode has it, then the scale of each axis, as far as given.
    """
    values = [*how, *named.values()]
    align_corners = values.pop(0) if "linear" in mode or "cubic" in mode else None
    count = len(inputs) - 2
    scales = [*values, *[None] * (count - len(values))]
    return [
        _interpolation(mode, inputs[2 + i], outputs[2 + i], scales[i], align_corners) for i in range(count)
    ]


_RESAMPLINGS = {
    "nearest": ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    "nearest-exact": ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    "linear": ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    "bicubic": ("upsample_bicubic2d",),
    "bilinear antialiased": ("_upsample_bilinear2d_aa",),
    "bicubic antialiased": ("_upsample_bicubic2d_aa",),
}
_OF_RESAMPLING = [
    (getattr(aten, f"{name}{suffix}").default, partial(translation, mode))
    for mode, names in _RESAMPLINGS.items()
    for name in names
    for suffix, translation in (("", _resampled), ("_backward", _resampled_backward))
]

_OF_POOLING = [
    (getattr(aten, f"{kind}_pool{count}d{suffix}").default, partial(_as_batch, count, translation))
    for count in (2, 3)
    for kind, suffix, translation in (
        ("max", "_with_indices", _max_pool),
        ("max", "_with_indices_backward", _max_pool_backward),
        ("avg", "", _avg_pool),
        ("avg", "_backward", _avg_pool_backward),
    )
]

TRANSLATIONS: Table = table(
    *_OF_POOLING,
    ((aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default), _adaptive_avg_pool),
    (aten._adaptive_avg_pool2d_backward.default, partial(_adaptive_avg_pool_backward, 2)),
    (aten._adaptive_avg_pool3d_backward.default, partial(_adaptive_avg_pool_backward, 3)),
    *_OF_RESAMPLING,
)
