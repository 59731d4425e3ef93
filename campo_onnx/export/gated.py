"""Sums whose terms are scaled by a number a row, in as few passes as the target has operators for."""

from campo_onnx.export.compact import elementwise, full, reshape
from campo_onnx.export.graph import Graph
from campo_onnx.export.value import Value


def gated_add(g: Graph, x: Value, y: Value, gate: Value) -> Value:
    """Give ``x + y * gate`` for a gate of one number a row: of all axes but the last."""
    if g.may_use("GatedAdd"):
        return g.op("com.microsoft:GatedAdd", x, y, gate)
    return elementwise(g, "Add", x, elementwise(g, "Mul", y, gate))


def add_product(g: Graph, x: Value, y: Value, z: Value) -> Value:
    """Give ``x + y * z`` for tensors of one shape; on CUDA in one pass.

    Its kernel of GatedAdd finds an element's gate by a division: rows of one element cost no more than
    long ones. That of a CPU goes row by row.
    """
    if g.target != "cuda" or not g.may_use("GatedAdd"):
        return elementwise(g, "Add", x, elementwise(g, "Mul", y, z))
    columns = (reshape(g, v, (v.elements, 1)) for v in (x, y, z))
    return reshape(g, g.op("com.microsoft:GatedAdd", *columns), x.shape)


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
