"""Products of matrices, with all that a product can do on its way: transpose, scale, add a bias."""

import math

import numpy as np

from campo_onnx.builder.compact import full, reshape, scale_apart, scaled, swap_last_two, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

PRODUCTS = frozenset({"MatMul", "com.microsoft:FusedMatMul"})
"""Operators that multiply batches of matrices."""


def matmul(g: Graph, a: Value, b: Value) -> Value:
    """Multiply matrices, or batches of them.

    A transposed matrix is read as it is by Gemm. A batch whose leading axes were merged for the
    product's sake is multiplied as it was, so that the reshaping falls away.
    """
    if a.rank == 2 and b.rank == 2:
        return gemm(g, a, b)
    if min(a.rank, b.rank) < 2:
        return _with_vectors(g, a, b)
    (a, of_a), (b, of_b) = (_scale_worth_moving(g, x, a.shape[-2] * b.shape[-1]) for x in (a, b))
    scale = of_a * of_b
    if g.may_use("FusedMatMul", a, b):
        return _fused(g, a, b, scale)
    return scaled(g, _batched(g, a, b), scale)


def _with_vectors(g: Graph, a: Value, b: Value) -> Value:
    """Multiply with vectors as matrices of one row or column.

    ONNX Runtime's optimizer fuses a transposed matrix with a vector into a product that is wrong.
    """
    shape = (*a.shape[:-1], *(b.shape[:-2] if b.rank > 1 else ()), *(b.shape[-1:] if b.rank > 1 else ()))
    row = reshape(g, a, (1, a.elements)) if a.rank == 1 else a
    column = reshape(g, b, (b.elements, 1)) if b.rank == 1 else b
    return reshape(g, matmul(g, row, column), shape)


def _scale_worth_moving(g: Graph, x: Value, result: int) -> tuple[Value, float]:
    """Leave a factor to the product, or to its result (of so many elements a matrix) if that is smaller."""
    is_free = g.may_use("FusedMatMul", x) or g.sizes_change
    return scale_apart(g, x) if is_free or x.shape[-2] * x.shape[-1] > result else (x, 1.0)


def _batched(g: Graph, a: Value, b: Value) -> Value:
    leading = _leading_axes(g, a) or _leading_axes(g, b)
    if a.rank == b.rank == 3 and leading:
        product = _product(g, _with_leading_axes(g, a, leading), _with_leading_axes(g, b, leading))
        return reshape(g, product, (a.shape[0], *product.shape[-2:]))
    return _product(g, a, b)


def _product(g: Graph, a: Value, b: Value) -> Value:
    """Multiply; what is transposed is the smaller of two matrices and their product, not the larger one."""
    turned = (None, None) if g.sizes_change else (_swapped(g, a), _swapped(g, b))
    for i, source in enumerate(turned):
        other = (b, a)[i]
        small = 2 * (other.elements + math.prod(a.shape[:-1]) * b.shape[-1])
        if source is None or turned[1 - i] is not None or a.rank != b.rank or small >= source.elements:
            continue
        pair = (swap_last_two(g, b), source) if i == 0 else (source, swap_last_two(g, a))
        return swap_last_two(g, g.op("MatMul", *pair))
    return g.op("MatMul", a, b)


def _swapped(g: Graph, x: Value) -> Value | None:
    """Give what `x` is the transpose of, where it is matrices that are transposed and nothing else."""
    transpose = g.producer(x, "Transpose")
    if transpose is None or transpose.inputs[0] is None:
        return None
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return transpose.inputs[0] if list(transpose.attributes["perm"]) == perm else None


def _fused(g: Graph, a: Value, b: Value, scale: float) -> Value:
    """Multiply with the transpositions and the scale inside the product."""
    leading = _leading_axes(g, a) or _leading_axes(g, b)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if a.rank == b.rank == 3 and leading:
        a, b = _with_leading_axes(g, a, leading), _with_leading_axes(g, b, leading)
    (a, transposed_a), (b, transposed_b) = _upright(g, a), _upright(g, b)
    flags = {"transA": transposed_a or None, "transB": transposed_b or None}
    if not transposed_a and not transposed_b and scale == 1.0:
        return reshape(g, g.op("MatMul", a, b), shape)
    alpha = None if scale == 1.0 else scale
    return reshape(g, g.op("com.microsoft:FusedMatMul", a, b, alpha=alpha, **flags), shape)


def is_turned(g: Graph, x: Value) -> bool:
    """Whether a product can read matrices as they lie before they are transposed."""
    return bool(_upright(g, x)[1])


def _upright(g: Graph, x: Value) -> tuple[Value, int]:
    """Give matrices and whether they are to be transposed: whichever way their rows lie in memory."""
    turned = g.producer(x, "Transpose")
    if turned is None or turned.inputs[0] is None:
        return x, 0
    *first, rows, columns = turned.attributes["perm"]
    if rows < columns:
        return x, 0
    return transpose(g, turned.inputs[0], [*first, columns, rows]), 1


def gemm(g: Graph, a: Value, b: Value, bias: Value | None = None) -> Value:
    """Multiply two matrices and add a bias that broadcasts to the product."""
    (a, of_a), (b, of_b) = scale_apart(g, a), scale_apart(g, b)
    (a, transposed_a), (b, transposed_b) = _untransposed(g, a), _untransposed(g, b)
    alpha = of_a * of_b
    if bias is None and not transposed_a and not transposed_b and alpha == 1.0:
        return g.op("MatMul", a, b)
    flags = {"transA": transposed_a or None, "transB": transposed_b or None}
    return g.op("Gemm", a, b, bias, alpha=None if alpha == 1.0 else alpha, **flags)


def _untransposed(g: Graph, matrix: Value) -> tuple[Value, int]:
    source = g.before(matrix, "Transpose")
    return (matrix, 0) if source is None else (source, 1)


def _leading_axes(g: Graph, batch: Value) -> tuple[int, ...]:
    """Say which axes were merged into the first one of a batch of matrices; empty if none were."""
    source = _before_merge(g, batch)
    return () if source is None else source.shape[:-2]


def _before_merge(g: Graph, batch: Value) -> Value | None:
    source = g.before(batch, "Reshape")
    if source is not None:
        return source if source.shape[-2:] == batch.shape[-2:] and source.rank > 3 else None
    turned = g.producer(batch, "Transpose")
    if turned is None or turned.inputs[0] is None or list(turned.attributes["perm"]) != [0, 2, 1]:
        return None
    unturned = _before_merge(g, turned.inputs[0])
    return None if unturned is None else swap_last_two(g, unturned)


def _with_leading_axes(g: Graph, batch: Value, leading: tuple[int, ...]) -> Value:
    source = _before_merge(g, batch)
    if source is not None and source.shape[:-2] == leading:
        return source
    return reshape(g, batch, (*leading, *batch.shape[-2:]))


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
