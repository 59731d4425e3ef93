"""Largest and smallest elements, sorting, and searching in what is sorted.

A NaN among elements is their largest and their smallest, as in torch. ONNX Runtime's kernels compare, and a
NaN is larger than nothing: a loss of NaN would come out as a number.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, full, reduce, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, axes_of, operand, promoted
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_INT32 = int(TensorProto.INT32)
_BOOL = int(TensorProto.BOOL)


def extreme(g: Graph, op_type: str, x: Value, axes: Sequence[int], *, keepdims: bool) -> Value:
    """Give the largest or smallest elements over `axes`, NaN where there is one."""
    return with_nan(g, x, reduce(g, op_type, x, axes, keepdims=keepdims), axes)


def with_nan(g: Graph, x: Value, reduced: Value, axes: Sequence[int]) -> Value:
    """Make a reduction over `axes` NaN where `x` has one."""
    if not x.is_float or reduced.elements == x.elements:
        return reduced
    nans = reduce(g, "ReduceMax", cast(g, g.op("IsNaN", x), _INT32), axes, keepdims=False)
    nan = g.constant(np.asarray(np.nan, x.numpy_dtype))
    return elementwise(g, "Where", reshape(g, cast(g, nans, _BOOL), reduced.shape), nan, reduced)


def ordered(g: Graph, x: Value) -> Value:
    """Give what to compare in place of `x`: a NaN counts as larger than any number."""
    if not x.is_float:
        return x
    largest = g.constant(np.asarray(math.inf, x.numpy_dtype))
    return elementwise(g, "Where", g.op("IsNaN", x), largest, x)


def _over(
    op_type: str, g: Graph, expected: Expected, x: Value, dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
) -> Value:  # fmt: skip
    return extreme(g, op_type, x, axes_of(x, dim), keepdims=keepdim)


def _with_index(
    extremum: str, index: str, g: Graph, expected: Expected, x: Value, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    dim %= x.rank
    dtype, x = x.dtype, cast(g, x, _INT32) if x.dtype == _BOOL else x
    where = g.op(index, x, axis=dim, keepdims=int(keepdim))
    return cast(g, extreme(g, extremum, x, [dim], keepdims=keepdim), dtype), where


def _argument(
    op_type: str, g: Graph, expected: Expected, x: Value, dim: int | None = None, keepdim: bool = False
) -> Value:
    if dim is None:
        x, dim = reshape(g, x, (x.elements,)), 0
    return reshape(g, g.op(op_type, x, axis=dim % x.rank, keepdims=int(keepdim)), expected.shape)


_INT32, _INT64 = int(TensorProto.INT32), int(TensorProto.INT64)
_SMALL = frozenset(int(t) for t in (TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16))
"""Types that providers do not sort."""

_MOST_COMPARISONS = 1 << 26
"""Of elements with boundaries: each is a byte of memory, and eight where they are counted."""


def _topk(
    g: Graph, expected: Expected, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:  # fmt: skip
    axis, key = dim % x.rank, ordered(g, x)
    settings = {"axis": axis, "largest": int(largest), "sorted": int(sorted)}
    values, places = g.ops("TopK", key, g.integers([k]), outputs=2, **settings)
    return (values if key is x else g.op("GatherElements", x, places, axis=axis)), places


def _sort(
    g: Graph, expected: Expected, x: Value, dim: int = -1, descending: bool = False, **_: Any
) -> tuple[Value, ...]:
    # Always stable: of equal elements TopK gives that of the lower index first, whichever the direction.
    if x.rank == 0:
        return x, full(g, (), 0, _INT64)
    dtype = _INT32 if x.dtype in _SMALL else x.dtype
    values, places = _topk(g, expected, cast(g, x, dtype), x.shape[dim], dim, largest=descending)
    return cast(g, values, x.dtype), places


def _searchsorted(
    g: Graph, expected: Expected, sequence: Value, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    if sorter is not None:
        sequence = g.op("GatherElements", sequence, sorter, axis=sequence.rank - 1)
    return _places(g, expected, sequence, x, right or side == "right")


def _places(g: Graph, expected: Expected, sequence: Value, x: Any, right: bool) -> Value:
    """Count the boundaries before each element: all of them are looked at."""
    dtype = promoted(sequence, x)
    sequence, x = operand(g, sequence, dtype), operand(g, x, dtype)
    count = sequence.shape[-1]
    if x.elements * count > _MOST_COMPARISONS:
        raise UntranslatableError(
            f"{x.elements:,} elements are compared with {count:,} boundaries each",
            remedy="Search before the step, and give the places as an input.",
        )
    if count == 0:
        return full(g, expected.shape, 0, expected.dtype)
    rows = sequence
    if sequence.rank > 1:
        rows = reshape(g, sequence, (*sequence.shape[:-1], 1, count))
    column = reshape(g, x, (*x.shape, 1))
    # Not "less": NaN comes behind all of them, as torch has it.
    behind = elementwise(g, "Greater" if right else "GreaterOrEqual", rows, column)
    before = cast(g, elementwise(g, "Not", behind), expected.dtype)
    return reduce(g, "ReduceSum", before, [before.rank - 1], keepdims=False)


TRANSLATIONS: Table = table(
    ((aten.amax.default, aten.max.default), partial(_over, "ReduceMax")),
    ((aten.amin.default, aten.min.default), partial(_over, "ReduceMin")),
    (aten.max.dim, partial(_with_index, "ReduceMax", "ArgMax")),
    (aten.min.dim, partial(_with_index, "ReduceMin", "ArgMin")),
    (aten.argmax.default, partial(_argument, "ArgMax")),
    (aten.argmin.default, partial(_argument, "ArgMin")),
    (aten.topk.default, _topk),
    ((aten.sort.default, aten.sort.stable), _sort),
    (
        (aten.bucketize.Tensor, aten.bucketize.Scalar),
        lambda g, e, x, boundaries, *, right=False, **_: _places(g, e, boundaries, x, right),
    ),
    ((aten.searchsorted.Tensor, aten.searchsorted.Scalar), _searchsorted),
)
