"""Layer and group normalization in training."""

import math
from collections.abc import Sequence

from onnx import TensorProto

from campo_onnx.builder.compact import full, reduce, reshape, sum_per_channel
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import affine_rows, gated_add
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.batch_norm import along_channels, inverse_root
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, table

_DOUBLE = int(TensorProto.DOUBLE)


def _layer_norm(
    g: Graph, expected: Expected, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None,
    eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    if x.dtype == _DOUBLE:
        return _in_parts(g, x, len(shape), weight, bias, eps)
    weight = weight or _ones(g, shape, x)
    return g.ops("LayerNormalization", x, weight, bias, outputs=3, axis=x.rank - len(shape), epsilon=eps)


def _in_parts(
    g: Graph, x: Value, inner: int, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, ...]:
    """Normalize rows of double: LayerNormalization gives statistics in FP32."""
    axes = list(range(x.rank - inner, x.rank))
    mean = reduce(g, "ReduceMean", x, axes, keepdims=True)
    centred = x - mean
    variance = reduce(g, "ReduceMean", centred * centred, axes, keepdims=True)
    inverse = inverse_root(g, variance, eps)
    y = centred * inverse
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, inverse


def _layer_norm_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, shape: Sequence[int], mean: Value,
    inverse: Value, weight: Value | None, bias: Value | None, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    outer = list(range(x.rank - len(shape)))
    normal = _normal_rows(g, x, mean, inverse, shape)
    of_input = of_weight = of_bias = None
    product = gradient * normal
    if wanted[0]:
        scaled = gradient if weight is None else gradient * weight
        slope = _row_means(g, product, weight, len(shape))
        of_input = _normalized_gradient(g, scaled, normal, inverse, slope, len(shape))
    if wanted[1]:
        of_weight = reduce(g, "ReduceSum", product, outer, keepdims=False)
    if wanted[2]:
        of_bias = reduce(g, "ReduceSum", gradient, outer, keepdims=False)
    return of_input, of_weight, of_bias


def _normal_rows(g: Graph, x: Value, mean: Value, inverse: Value, shape: Sequence[int]) -> Value:
    """Normalize anew what the forward pass scaled and shifted: two passes, and nothing to keep till then."""
    producer = g.source(inverse)
    if producer is None or producer.op_type != "LayerNormalization" or producer.inputs[0] is not x:
        return (x - mean) * inverse
    attributes = {"axis": x.rank - len(shape), "epsilon": producer.attributes["epsilon"]}
    return g.ops("LayerNormalization", x, _ones(g, shape, x), outputs=3, **attributes)[0]


def _ones(g: Graph, shape: Sequence[int], like: Value) -> Value:
    return full(g, shape, 1, like.dtype)


def _row_means(g: Graph, product: Value, weight: Value | None, inner: int) -> Value:
    """Average over each row, weighted: as a product with a column, which writes no weighted rows."""
    outer, axes = product.shape[:-inner], list(range(product.rank - inner, product.rank))
    if weight is None:
        return reduce(g, "ReduceMean", product, axes, keepdims=True)
    column = reshape(g, weight * (1 / weight.elements), (weight.elements, 1))
    rows = reshape(g, product, (math.prod(outer), weight.elements))
    return reshape(g, g.op("MatMul", rows, column), (*outer, *[1] * inner))


def _normalized_gradient(
    g: Graph, gradient: Value, normal: Value, inverse: Value, slope: Value, inner: int
) -> Value:
    """Give ``inverse * (gradient - mean(gradient) - normal * slope)``."""
    axes = list(range(gradient.rank - inner, gradient.rank))
    mean = reduce(g, "ReduceMean", gradient, axes, keepdims=True)
    back = -inverse
    count = inverse.elements
    by_row = (count, math.prod(gradient.shape[axes[0] :]))
    rows, normal = reshape(g, gradient, by_row), reshape(g, normal, by_row)
    rest = affine_rows(g, normal, slope * back, mean * back)
    return reshape(g, gated_add(g, rest, rows, reshape(g, inverse, (count, 1))), gradient.shape)


def _group_norm(
    g: Graph, expected: Expected, x: Value, weight: Value | None, bias: Value | None, batch: int,
    channels: int, size: int, groups: int, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    """Normalize groups as rows; scale and shift of the channels are one normalization by 0 and 1."""
    normal, mean, inverse = _normal_groups(g, x, (batch, groups, channels * size // groups), eps)
    y = reshape(g, normal, x.shape)
    if weight is not None or bias is not None:
        zeros, ones = (full(g, (channels,), n, x.dtype) for n in (0, 1))
        y = g.op("BatchNormalization", y, weight or ones, bias or zeros, zeros, ones, epsilon=0.0)
    return y, reshape(g, mean, (batch, groups)), reshape(g, inverse, (batch, groups))


def _normal_groups(g: Graph, x: Value, shape: tuple[int, ...], eps: float) -> tuple[Value, ...]:
    rows = reshape(g, x, shape)
    if x.dtype == _DOUBLE:
        return _in_parts(g, rows, 1, None, None, eps)
    return g.ops("LayerNormalization", rows, _ones(g, shape[2:], x), outputs=3, axis=2, epsilon=eps)


def _group_norm_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, mean: Value, inverse: Value,
    weight: Value | None, batch: int, channels: int, size: int, groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    shape = (batch, groups, channels * size // groups)
    wide_mean, wide_inverse = (reshape(g, v, (batch, groups, 1)) for v in (mean, inverse))
    normal = _known_groups(g, x, shape, wide_mean, wide_inverse)
    scaled = gradient if weight is None else gradient * along_channels(g, weight, x.rank)
    scaled = reshape(g, scaled, shape)
    slope = reduce(g, "ReduceMean", scaled * normal, [2], keepdims=True)
    of_input = _normalized_gradient(g, scaled, normal, wide_inverse, slope, 1)
    of_weight = sum_per_channel(g, gradient * reshape(g, normal, x.shape))
    of_bias = sum_per_channel(g, gradient)
    assert math.prod(x.shape) == batch * channels * size
    return reshape(g, of_input, x.shape), of_weight, of_bias


def _known_groups(g: Graph, x: Value, shape: tuple[int, ...], mean: Value, inverse: Value) -> Value:
    """Give the groups that the forward pass normalized."""
    producer = g.source(inverse)
    if producer is not None and producer.op_type == "LayerNormalization":
        return producer.outputs[0]
    return (reshape(g, x, shape) - mean) * inverse


TRANSLATIONS: Table = table(
    (aten.native_layer_norm.default, _layer_norm),
    (aten.native_layer_norm_backward.default, _layer_norm_backward),
    (aten.native_group_norm.default, _group_norm),
    (aten.native_group_norm_backward.default, _group_norm_backward),
)
