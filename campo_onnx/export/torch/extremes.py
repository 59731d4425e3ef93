"""Largest and smallest elements. A NaN among them is the result, as in torch.

ONNX Runtime's kernels compare, and a NaN is larger than nothing: a loss of NaN would come out as a number.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, reduce, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, axes_of
from campo_onnx.export.translation import Expected, Table, table

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


TRANSLATIONS: Table = table(
    ((aten.amax.default, aten.max.default), partial(_over, "ReduceMax")),
    ((aten.amin.default, aten.min.default), partial(_over, "ReduceMin")),
    (aten.max.dim, partial(_with_index, "ReduceMax", "ArgMax")),
    (aten.min.dim, partial(_with_index, "ReduceMin", "ArgMin")),
    (aten.argmax.default, partial(_argument, "ArgMax")),
    (aten.argmin.default, partial(_argument, "ArgMin")),
)
