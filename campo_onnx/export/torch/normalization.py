"""Batch, layer and group normalization in training, by operators that every provider can run.

``BatchNormalization`` with ``training_mode`` has no CUDA kernel at opset 14 and later; its
inference form has, and takes the statistics of the batch as well as running ones.
"""

import math
from collections.abc import Sequence

import numpy as np

from campo_onnx.export.compact import elementwise, full, reduce, reshape, sum_per_channel
from campo_onnx.export.graph import Graph
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table
from campo_onnx.export.value import Value


def _mul(g: Graph, a: Value, b: Value) -> Value:
    return elementwise(g, "Mul", a, b)


def _inverse_root(g: Graph, variance: Value, eps: float) -> Value:
    root = elementwise(g, "Sqrt", elementwise(g, "Add", variance, g.scalar(eps, variance.dtype)))
    return elementwise(g, "Reciprocal", root)


def _batch_norm_with_statistics(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None,
    running_mean: Value, running_var: Value, momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    """As AOTAutograd writes evaluation."""
    return _batch_norm(g, expected, x, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


def _channels(g: Graph, vector: Value, rank: int) -> Value:
    """Lay a vector along axis 1."""
    return reshape(g, vector, (1, vector.elements, *[1] * (rank - 2)))


def _batch_axes(x: Value) -> list[int]:
    return [axis for axis in range(x.rank) if axis != 1]


def _batch_norm(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None,
    running_mean: Value | None, running_var: Value | None, training: bool, momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    channels = x.shape[1]
    weight = weight or full(g, (channels,), 1, x.dtype)
    bias = bias or full(g, (channels,), 0, x.dtype)
    if not training:
        if running_mean is None or running_var is None:
            raise UntranslatableError("evaluation without running statistics")
        y = g.op("BatchNormalization", x, weight, bias, running_mean, running_var, epsilon=eps)
        nothing = full(g, (0,), 0, x.dtype)
        return y, nothing, nothing, running_mean, running_var
    axes = _batch_axes(x)
    wide_mean = reduce(g, "ReduceMean", x, axes, keepdims=True)
    centered = elementwise(g, "Sub", x, wide_mean)
    mean = reshape(g, wide_mean, (channels,))
    # Not ReduceSumSquare, one pass instead of four: the CPU provider adds its terms one after the other.
    variance = reduce(g, "ReduceMean", _mul(g, centered, centered), axes, keepdims=False)
    y = g.op("BatchNormalization", x, weight, bias, mean, variance, epsilon=eps)
    inverse = _inverse_root(g, variance, eps)
    if running_mean is None or running_var is None:
        return y, mean, inverse, None, None
    count = x.elements // channels
    # The batch is normalized by its biased variance; what is remembered is the unbiased one.
    unbiased = momentum * count / (count - 1)
    return (
        *(y, mean, inverse),
        _moved(g, running_mean, mean, momentum, momentum),
        _moved(g, running_var, variance, momentum, unbiased),
    )


def _moved(g: Graph, running: Value, new: Value, momentum: float, share: float) -> Value:
    kept = _mul(g, running, g.scalar(1 - momentum, running.dtype))
    return elementwise(g, "Add", kept, _mul(g, new, g.scalar(share, new.dtype)))


def _batch_norm_without_statistics(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None, training: bool,
    momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _batch_norm(g, expected, x, weight, bias, None, None, training, momentum, eps)[:3]


def _native_batch_norm(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    var: Value | None, training: bool, momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    if training and mean is not None:
        raise UntranslatableError("running statistics that are written out of sight")
    return _batch_norm(g, expected, x, weight, bias, mean, var, training, momentum, eps)[:3]


def _batch_norm_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, weight: Value | None,
    running_mean: Value | None, running_var: Value | None, mean: Value | None, inverse: Value | None,
    training: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """With c = x - mean and r the inverse root of the variance, over n elements per channel.

    The gradients are: of the bias, sum(g); of the weight, r * sum(g * c); of the input,
    weight * r * (g - sum(g) / n - c * r * r * sum(g * c) / n), of which evaluation keeps g alone.
    """
    rank = x.rank
    if not training and running_mean is not None and running_var is not None:
        mean, inverse = running_mean, _inverse_root(g, running_var, eps)
    if mean is None or inverse is None:
        raise UntranslatableError("no statistics")
    scale = inverse if weight is None else _mul(g, weight, inverse)
    centered = elementwise(g, "Sub", x, _channels(g, mean, rank))
    total = sum_per_channel(g, gradient)
    moment = sum_per_channel(g, _mul(g, gradient, centered))
    of_weight = _mul(g, moment, inverse)
    if not training:
        return _mul(g, gradient, _channels(g, scale, rank)), of_weight, total
    share = g.scalar(x.shape[1] / x.elements, x.dtype)
    # (g - sum(g) / n) * scale is one node on g: a normalization by a variance of 1. The same on x would do
    # away with c, but providers compute x * a + b, which loses digits where x is far from 0.
    zeros, ones = (g.constant(np.full(total.elements, n, x.numpy_dtype)) for n in (0, 1))
    straight = g.op("BatchNormalization", gradient, scale, zeros, _mul(g, total, share), ones, epsilon=0.0)
    slope = _mul(g, _mul(g, of_weight, share), _mul(g, inverse, scale))
    of_input = elementwise(g, "Sub", straight, _mul(g, centered, _channels(g, slope, rank)))
    return of_input, of_weight, total


def _layer_norm(
    g: Graph, expected: Expected, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None,
    eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    weight = weight or full(g, shape, 1, x.dtype)
    return g.ops("LayerNormalization", x, weight, bias, outputs=3, axis=x.rank - len(shape), epsilon=eps)


def _layer_norm_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, shape: Sequence[int], mean: Value,
    inverse: Value, weight: Value | None, bias: Value | None, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    outer = list(range(x.rank - len(shape)))
    inner = list(range(x.rank - len(shape), x.rank))
    normal = _mul(g, elementwise(g, "Sub", x, mean), inverse)
    of_input = of_weight = of_bias = None
    if wanted[0]:
        scaled = gradient if weight is None else _mul(g, gradient, weight)
        of_input = _normalized_gradient(g, scaled, normal, inverse, inner)
    if wanted[1]:
        of_weight = reduce(g, "ReduceSum", _mul(g, gradient, normal), outer, keepdims=False)
    if wanted[2]:
        of_bias = reduce(g, "ReduceSum", gradient, outer, keepdims=False)
    return of_input, of_weight, of_bias


def _normalized_gradient(g: Graph, gradient: Value, normal: Value, inverse: Value, axes: list[int]) -> Value:
    mean = reduce(g, "ReduceMean", gradient, axes, keepdims=True)
    slope = reduce(g, "ReduceMean", _mul(g, gradient, normal), axes, keepdims=True)
    rest = elementwise(g, "Sub", elementwise(g, "Sub", gradient, mean), _mul(g, normal, slope))
    return _mul(g, rest, inverse)


def _group_norm(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None, batch: int,
    channels: int, size: int, groups: int, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    grouped = reshape(g, x, (batch, groups, channels * size // groups))
    mean = reduce(g, "ReduceMean", grouped, [2], keepdims=True)
    centered = elementwise(g, "Sub", grouped, mean)
    variance = reduce(g, "ReduceMean", _mul(g, centered, centered), [2], keepdims=True)
    inverse = _inverse_root(g, variance, eps)
    y = reshape(g, _mul(g, centered, inverse), x.shape)
    if weight is not None:
        y = _mul(g, y, _channels(g, weight, x.rank))
    if bias is not None:
        y = elementwise(g, "Add", y, _channels(g, bias, x.rank))
    return y, reshape(g, mean, (batch, groups)), reshape(g, inverse, (batch, groups))


def _group_norm_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, mean: Value, inverse: Value,
    weight: Value | None, batch: int, channels: int, size: int, groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    shape = (batch, groups, channels * size // groups)
    wide_mean, wide_inverse = (reshape(g, v, (batch, groups, 1)) for v in (mean, inverse))
    normal = _mul(g, elementwise(g, "Sub", reshape(g, x, shape), wide_mean), wide_inverse)
    scaled = gradient if weight is None else _mul(g, gradient, _channels(g, weight, x.rank))
    of_input = _normalized_gradient(g, reshape(g, scaled, shape), normal, wide_inverse, [2])
    of_weight = sum_per_channel(g, _mul(g, gradient, reshape(g, normal, x.shape)))
    of_bias = sum_per_channel(g, gradient)
    assert math.prod(x.shape) == batch * channels * size
    return reshape(g, of_input, x.shape), of_weight, of_bias


TRANSLATIONS: Table = table(
    (aten._native_batch_norm_legit_functional.default, _batch_norm),
    (aten._native_batch_norm_legit.no_stats, _batch_norm_without_statistics),
    (aten._native_batch_norm_legit_no_training.default, _batch_norm_with_statistics),
    (aten.native_batch_norm.default, _native_batch_norm),
    (aten.native_batch_norm_backward.default, _batch_norm_backward),
    (aten.native_layer_norm.default, _layer_norm),
    (aten.native_layer_norm_backward.default, _layer_norm_backward),
    (aten.native_group_norm.default, _group_norm),
    (aten.native_group_norm_backward.default, _group_norm_backward),
)
