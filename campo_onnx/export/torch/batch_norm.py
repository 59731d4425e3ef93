"""Batch normalization in training, by operators that every provider can run.

``BatchNormalization`` with ``training_mode`` has no CUDA kernel at opset 14 and later; its inference form
has, and takes the statistics of the batch as well as running ones. These come from
``LayerNormalization`` of each image's channel, whose mean and inverse deviation are by-products: one pass
for what takes four otherwise, and no less exact. What it gives besides, each row normalized, is what the
gradient is computed from: sums over it lose nothing where the input is far from zero.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from campo_onnx.builder.compact import elementwise, expand, full, reduce, reshape, sum_per_channel
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import affine_rows, gated_add
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_SHORTEST_ROW = 32
"""Elements of an image's channel from which on its statistics are few beside it."""


def inverse_root(g: Graph, variance: Value, eps: float) -> Value:
    """Give the inverse deviation."""
    return elementwise(g, "Reciprocal", elementwise(g, "Sqrt", variance + eps))


def along_channels(g: Graph, vector: Value, rank: int) -> Value:
    """Lay a vector along axis 1."""
    return reshape(g, vector, (1, vector.elements, *[1] * (rank - 2)))


def batch_axes(x: Value) -> list[int]:
    """Give all axes but that of channels."""
    return [axis for axis in range(x.rank) if axis != 1]


def _batch_norm(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None,
    running_mean: Value | None, running_var: Value | None, training: bool, momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    count = x.shape[1]
    weight = weight or full(g, (count,), 1, x.dtype)
    bias = bias or full(g, (count,), 0, x.dtype)
    if not training:
        if running_mean is None or running_var is None:
            raise UntranslatableError("evaluation without running statistics")
        y = g.op("BatchNormalization", x, weight, bias, running_mean, running_var, epsilon=eps)
        nothing = full(g, (0,), 0, x.dtype)
        return y, nothing, nothing, running_mean, running_var
    rows = _rows(g, x, eps)
    if rows is None:
        mean, centered, variance = _statistics(g, x)
        inverse = inverse_root(g, variance, eps)
        # Of the centered values: x * scale - mean * scale cancels where a channel is far from zero.
        zeros = g.constant(np.zeros(count, x.numpy_dtype))
        y = g.op("BatchNormalization", centered, weight, bias, zeros, variance, epsilon=eps)
    else:
        mean, variance, inverse = rows.channel_statistics(g, eps)
        nothing = g.constant(np.zeros(count, x.numpy_dtype))
        y = g.op("BatchNormalization", x, weight * inverse, bias, mean, nothing, epsilon=1.0)
    if running_mean is None or running_var is None:
        return y, mean, inverse, None, None
    each = x.elements // count
    # The batch is normalized by its biased variance; what is remembered is the unbiased one.
    unbiased = momentum * each / (each - 1)
    return (
        *(y, mean, inverse),
        running_mean * (1 - momentum) + mean * momentum,
        running_var * (1 - momentum) + variance * unbiased,
    )


def _statistics(g: Graph, x: Value) -> tuple[Value, Value, Value]:
    """Give the mean of each channel, the centered values, and their variance."""
    axes = batch_axes(x)
    wide_mean = reduce(g, "ReduceMean", x, axes, keepdims=True)
    centered = x - wide_mean
    # Not ReduceSumSquare: the CPU provider adds its terms one after the other.
    variance = reduce(g, "ReduceMean", centered * centered, axes, keepdims=False)
    return reshape(g, wide_mean, (x.shape[1],)), centered, variance


class _Rows(NamedTuple):
    """Each channel of each image as a row: (batch, channels, elements).

    ``x = normal * deviation + mean``, with a number a row.
    """

    normal: Value
    mean: Value
    deviation: Value

    @property
    def total(self) -> int:
        """Elements in a channel of the whole batch."""
        return self.normal.elements // self.normal.shape[1]

    def around(self, g: Graph) -> Value:
        """Stack deviations and means around the channel's mean along the batch: of these, squares add up."""
        mean = reduce(g, "ReduceMean", self.mean, [0, 2], keepdims=True)
        return g.op("Concat", self.deviation, self.mean - mean, axis=0)

    def channel_statistics(self, g: Graph, eps: float) -> tuple[Value, Value, Value]:
        """Give mean, variance and inverse deviation of each channel; only the last with the epsilon in it."""
        batch, count, _ = self.normal.shape
        mean = reduce(g, "ReduceMean", self.mean, [0, 2], keepdims=True)
        length = g.op("ReduceL2", self.around(g), g.integers([0, 2]), keepdims=0)
        inverse = math.sqrt(batch) / length
        # The rows' deviations hold the epsilon already.
        variance = length * length * (1 / batch) - eps
        return reshape(g, mean, (count,)), variance, inverse

    def standard(self, g: Graph, inverse: Value) -> Value:
        """Stack factors and shifts that turn `normal` into the standardized input, along the batch."""
        return self.around(g) * reshape(g, inverse, (1, inverse.elements, 1))


def _rows(g: Graph, x: Value, eps: float) -> _Rows | None:
    """Normalize the rows; None where they are too short for it to pay."""
    if x.rank < 3 or math.prod(x.shape[2:]) < _SHORTEST_ROW:
        return None
    length = math.prod(x.shape[2:])
    normal, mean, inverse = g.ops(
        "LayerNormalization",
        reshape(g, x, (*x.shape[:2], length)),
        g.constant(np.ones(length, x.numpy_dtype)),
        outputs=3,
        axis=2,
        epsilon=eps,
    )
    return _Rows(normal, mean, elementwise(g, "Reciprocal", inverse))


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
    """With s the standardized input and r the inverse deviation, over n elements per channel.

    The gradients are: of the bias, sum(g); of the weight, sum(g * s); of the input,
    weight * r * (g - sum(g) / n - s * sum(g * s) / n), of which evaluation keeps g alone.
    """
    if not training and running_mean is not None and running_var is not None:
        mean, inverse = running_mean, inverse_root(g, running_var, eps)
    if mean is None or inverse is None:
        raise UntranslatableError("no statistics")
    scale = inverse if weight is None else weight * inverse
    rows = _rows(g, x, eps) if training else None
    if rows is not None:
        return _by_rows(g, gradient, rows, scale, inverse)
    rank = x.rank
    centered = x - along_channels(g, mean, rank)
    total = sum_per_channel(g, gradient)
    moment = sum_per_channel(g, gradient * centered)
    of_weight = moment * inverse
    if not training:
        return gradient * along_channels(g, scale, rank), of_weight, total
    share = g.scalar(x.shape[1] / x.elements, x.dtype)
    zeros, ones = (g.constant(np.full(total.elements, n, x.numpy_dtype)) for n in (0, 1))
    straight = g.op("BatchNormalization", gradient, scale, zeros, total * share, ones, epsilon=0.0)
    slope = of_weight * share * (inverse * scale)
    return straight - centered * along_channels(g, slope, rank), of_weight, total


def _by_rows(
    g: Graph, gradient: Value, rows: _Rows, scale: Value, inverse: Value
) -> tuple[Value, Value, Value]:
    batch, count, _ = rows.normal.shape
    by_row = reshape(g, gradient, rows.normal.shape)
    sums = reduce(g, "ReduceSum", by_row, [2], keepdims=True)
    standard = rows.standard(g, inverse)
    products = reduce(g, "ReduceSum", by_row * rows.normal, [2], keepdims=True)
    both = g.op("Concat", products, sums, axis=0)
    total = reduce(g, "ReduceSum", sums, [0, 2], keepdims=False)
    of_weight = reduce(g, "ReduceSum", both * standard, [0, 2], keepdims=False)
    # The gradient of a row is g * scale + normal * slope + level.
    share = scale * (-1 / rows.total)
    lines = standard * reshape(g, share * of_weight, (1, count, 1))
    slope, level = g.ops("Split", lines, g.integers([batch, batch]), outputs=2, axis=0)
    level = level + reshape(g, share * total, (1, count, 1))
    rest = affine_rows(g, rows.normal, slope, level)
    gate = expand(g, reshape(g, scale, (1, count, 1)), (batch, count, 1))
    return reshape(g, gated_add(g, rest, by_row, gate), gradient.shape), of_weight, total


TRANSLATIONS: Table = table(
    (aten._native_batch_norm_legit_functional.default, _batch_norm),
    (
        aten._native_batch_norm_legit.no_stats,
        lambda g, e, x, weight, bias, *how: _batch_norm(g, e, x, weight, bias, None, None, *how)[:3],
    ),
    (
        aten._native_batch_norm_legit_no_training.default,  # as AOTAutograd writes evaluation
        lambda g, e, x, weight, bias, mean, var, momentum, eps: _batch_norm(
            g, e, x, weight, bias, mean, var, False, momentum, eps
        )[:3],
    ),
    (aten.native_batch_norm.default, _native_batch_norm),
    (aten.native_batch_norm_backward.default, _batch_norm_backward),
)
