"""Sums whose terms are scaled by a number a row, in as few passes as the target has operators for."""

from campo_onnx.builder.compact import full, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value


def gated_add(g: Graph, x: Value, y: Value, gate: Value) -> Value:
    """Give ``x + y * gate`` for a gate of one number a row: of all axes but the last."""
    if g.may_use("GatedAdd", x):
        return g.op("com.microsoft:GatedAdd", x, y, gate)
    return x + y * gate


def affine_rows(g: Graph, x: Value, scale: Value, shift: Value) -> Value:
    """Give ``x * scale + shift`` with a number a row each, in one pass.

    To a normalization by a mean of 0 and a deviation of 1 (as its epsilon), rows are channels.
    """
    length = x.shape[-1]
    count = x.elements // length
    zeros = full(g, (count,), 0, x.dtype)
    flat = reshape(g, x, (1, count, length))
    vectors = (reshape(g, scale, (count,)), reshape(g, shift, (count,)))
    return reshape(g, g.op("BatchNormalization", flat, *vectors, zeros, zeros, epsilon=1.0), x.shape)
