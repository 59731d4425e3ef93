"""Primitives that move, reduce, multiply and look up, and what loops and choices need besides bodies.

A loop needs the row that each turn reads, and a stack of what they give.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import (
    cast,
    concat,
    crop,
    elementwise,
    expand,
    full,
    pad,
    reduce,
    reshape,
    sliced,
    transpose,
)
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import matmul
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_INT32 = int(TensorProto.INT32)
_BOOL = int(TensorProto.BOOL)


def _broadcast(g: Graph, expected: Expected, x: Value, *, broadcast_dimensions: Sequence[int]) -> Value:
    aligned = [1] * len(expected.shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        aligned[axis] = size
    return expand(g, reshape(g, x, aligned), expected.shape)


def _reshaped(g: Graph, expected: Expected, x: Value, *, dimensions: Sequence[int] | None) -> Value:
    """Read the elements with the axes in another order, where there is one: Fortran's reverses them."""
    return reshape(g, x if dimensions is None else transpose(g, x, dimensions), expected.shape)


def _reduced(op_type: str, g: Graph, expected: Expected, x: Value, *, axes: Sequence[int]) -> Value:
    return reduce(g, op_type, x, axes, keepdims=False) if axes else x


def _reduced_bool(op_type: str, g: Graph, expected: Expected, x: Value, *, axes: Sequence[int]) -> Value:
    return cast(g, reduce(g, op_type, cast(g, x, _INT32), axes, keepdims=False), _BOOL)


def _argument(op_type: str, g: Graph, expected: Expected, x: Value, *, axes: Sequence[int]) -> Value:
    return cast(g, g.op(op_type, x, axis=axes[0], keepdims=0), expected.dtype)


def _iota(g: Graph, expected: Expected, *, dimension: int) -> Value:
    line = np.arange(expected.shape[dimension]).astype(expected.numpy_dtype)
    aligned = [-1 if i == dimension else 1 for i in range(len(expected.shape))]
    return expand(g, g.constant(line.reshape(aligned)), expected.shape)


def _top(g: Graph, expected: Expected, x: Value, *, k: int, axis: int) -> tuple[Value, Value]:
    values, places = g.ops("TopK", x, g.integers([k]), outputs=2, axis=axis, largest=1, sorted=1)
    return values, cast(g, places, _INT32)


def _sorted(g: Graph, expected: Expected, *operands: Value, dimension: int, num_keys: int) -> list[Value]:
    """Sort by the first operand; of equal elements TopK gives that of the lower index first."""
    key = operands[0]
    if num_keys != 1 or key.dtype == _BOOL:
        raise UntranslatableError(f"sorting by {num_keys} keys" if num_keys != 1 else "sorting truth values")
    size = g.integers([key.shape[dimension]])
    values, places = g.ops("TopK", key, size, outputs=2, axis=dimension, largest=0, sorted=1)
    return [values, *(g.op("GatherElements", x, places, axis=dimension) for x in operands[1:])]


def _split(g: Graph, expected: Expected, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    ends = np.cumsum(sizes).tolist()
    return [sliced(g, x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _sliced(
    g: Graph, expected: Expected, x: Value, *, start_indices: Any, limit_indices: Any, strides: Any
) -> Value:
    return crop(g, x, list(start_indices), list(limit_indices), list(strides) if strides else None)


def _reversed(g: Graph, expected: Expected, x: Value, *, dimensions: Sequence[int]) -> Value:
    ends = g.integers([-x.shape[axis] - 1 for axis in dimensions])
    backwards = g.integers([-1] * len(dimensions))
    return g.op("Slice", x, backwards, ends, g.integers(list(dimensions)), backwards)


def _padded(g: Graph, expected: Expected, x: Value, value: Value, *, padding_config: Any) -> Value:
    if value.constant is None:
        raise UntranslatableError("padding with a value that is computed")
    number = float(value.constant)
    for axis, (_, _, interior) in enumerate(padding_config):
        x = spread(g, x, axis, interior, number)
    return pad(g, x, [low for low, _, _ in padding_config], [high for _, high, _ in padding_config], number)


def spread(g: Graph, x: Value, axis: int, interior: int, number: float = 0.0) -> Value:
    """Put `interior` times `number` between the elements along an axis."""
    size = x.shape[axis]
    if not interior or size < 2:
        return x
    column = reshape(g, x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    behind = [interior if i == axis + 1 else 0 for i in range(column.rank)]
    wide = pad(g, column, [0] * column.rank, behind, number)
    flat = reshape(g, wide, (*x.shape[:axis], size * (interior + 1), *x.shape[axis + 1 :]))
    return sliced(g, flat, axis, 0, flat.shape[axis] - interior)


def _dot(g: Graph, expected: Expected, a: Value, b: Value, *, dimension_numbers: Any) -> Value:
    """Contract any axes: both sides become batches of matrices, in the order of the result."""
    a, b = in_type_of_result(g, expected, a), in_type_of_result(g, expected, b)
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    free_a = [i for i in range(a.rank) if i not in (*contract_a, *batch_a)]
    free_b = [i for i in range(b.rank) if i not in (*contract_b, *batch_b)]
    batch = [a.shape[i] for i in batch_a]
    depth = math.prod(a.shape[i] for i in contract_a)
    rows, columns = (math.prod(x.shape[i] for i in free) for x, free in ((a, free_a), (b, free_b)))
    left = _matrix(g, a, batch_a, free_a, contract_a, (*batch, rows, depth))
    right = _matrix(g, b, batch_b, contract_b, free_b, (*batch, depth, columns))
    return reshape(g, matmul(g, left, right), expected.shape)


def in_type_of_result(g: Graph, expected: Expected, x: Value) -> Value:
    """Convert an operand to the type that its product is computed in, ``preferred_element_type``."""
    wide = expected.numpy_dtype
    if x.numpy_dtype.itemsize > wide.itemsize:
        raise UntranslatableError(f"a product of {x.numpy_dtype} whose result is {wide}")
    return cast(g, x, expected.dtype)


def _matrix(
    g: Graph,
    x: Value,
    batch: Sequence[int],
    rows: Sequence[int],
    columns: Sequence[int],
    shape: Sequence[int],
) -> Value:
    """Turn `x` into matrices; as the transpose of a reshape where that leaves its elements in place."""
    as_is, turned = [*batch, *rows, *columns], [*batch, *columns, *rows]
    if turned == list(range(x.rank)) and as_is != turned:
        swapped = reshape(g, x, (*shape[:-2], shape[-1], shape[-2]))
        return transpose(g, swapped, [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    return reshape(g, transpose(g, x, as_is), shape)


ROW, STACK, CHOICE = "row of a loop", "rows of a loop", "choice of a result"
"""Kinds of these operations; no primitives of JAX."""

MOST_OPERATIONS = 20_000
"""Operations that a loop may become."""


def _row(g: Graph, expected: Expected, x: Value, *, turn: int) -> Value:
    return reshape(g, sliced(g, x, 0, turn, turn + 1), expected.shape)


def _stack(g: Graph, expected: Expected, *rows: Value) -> Value:
    parts: Sequence[Value] = [reshape(g, row, (1, *row.shape)) for row in rows]
    return concat(g, parts, 0)


def _choice(g: Graph, expected: Expected, which: Value, *cases: Value) -> Value:
    """Choose by number; one below the first means that, one above the last likewise."""
    chosen = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        is_it = which <= number
        chosen = elementwise(g, "Where", is_it, cases[number], chosen)
    return chosen


TRANSLATIONS: Table = table(
    ("argmax", partial(_argument, "ArgMax")),
    ("argmin", partial(_argument, "ArgMin")),
    ("broadcast_in_dim", _broadcast),
    ("concatenate", lambda g, e, *parts, dimension: concat(g, parts, dimension)),
    (
        "cumsum",
        lambda g, e, x, *, axis, reverse: g.op("CumSum", x, g.constant(np.int64(axis)), reverse=int(reverse)),
    ),
    ("dot_general", _dot),
    ("iota", _iota),
    ("pad", _padded),
    ("reduce_and", partial(_reduced_bool, "ReduceMin")),
    ("reduce_max", partial(_reduced, "ReduceMax")),
    ("reduce_min", partial(_reduced, "ReduceMin")),
    ("reduce_or", partial(_reduced_bool, "ReduceMax")),
    ("reduce_prod", partial(_reduced, "ReduceProd")),
    ("reduce_sum", partial(_reduced, "ReduceSum")),
    ("reshape", _reshaped),
    ("rev", _reversed),
    ("slice", _sliced),
    ("sort", _sorted),
    ("top_k", _top),
    ("empty2", lambda g, e: full(g, e.shape, 0, e.dtype)),
    ("split", _split),
    (("expand_dims", "squeeze"), lambda g, e, x: reshape(g, x, e.shape)),
    ("transpose", lambda g, e, x, *, permutation: transpose(g, x, permutation)),
    (ROW, _row),
    (STACK, _stack),
    (CHOICE, _choice),
)
