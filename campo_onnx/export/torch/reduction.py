"""Sums, means, extrema and softmax."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from campo_onnx.builder.compact import cast, elementwise, reduce, reshape, scale_apart, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.extremes import extreme
from campo_onnx.export.torch.operands import aten, axes_of, operand
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

Dims = int | Sequence[int] | None

_INT32 = int(TensorProto.INT32)
_BOOL = int(TensorProto.BOOL)
_LONGEST_RUN = 512


def _over(
    op_type: str, g: Graph, expected: Expected, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any
) -> Value:
    return reduce(g, op_type, cast(g, x, expected.dtype), axes_of(x, dim), keepdims=keepdim)


def _decided(
    op_type: str, g: Graph, expected: Expected, x: Value, dim: Dims = None, keepdim: bool = False
) -> Value:
    decided = cast(g, x, _BOOL)
    if isinstance(dim, Sequence) and not dim:
        return decided  # other reductions take no axes for all
    counted = reduce(g, op_type, cast(g, decided, _INT32), axes_of(x, dim), keepdims=keepdim)
    return cast(g, counted, _BOOL)


def _cumprod(g: Graph, expected: Expected, x: Value, dim: int, **_: Any) -> Value:
    """Multiply what comes before each element, all of it anew: ONNX has no running product."""
    x, dim = cast(g, x, expected.dtype), dim % max(x.rank, 1)
    n = x.shape[dim]
    if n > _LONGEST_RUN:
        raise UntranslatableError(
            f"a running product of {n} elements",
            remedy="Of positive numbers, take x.log().cumsum(dim).exp().",
        )
    sees = np.tril(np.ones((n, n), bool)).reshape((n, n) + (1,) * (x.rank - dim - 1))
    wide = reshape(g, x, (*x.shape[:dim], 1, *x.shape[dim:]))
    seen = elementwise(g, "Where", g.constant(sees), wide, 1)
    return reduce(g, "ReduceProd", seen, [dim + 1], keepdims=False)


def _var(
    g: Graph, expected: Expected, x: Value, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> Value:  # fmt: skip
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    centered = x - reduce(g, "ReduceMean", x, axes, keepdims=True)
    biased = reduce(g, "ReduceMean", centered * centered, axes, keepdims=keepdim)
    freedom = count - (1 if correction is None else correction)
    if freedom <= 0:
        raise UntranslatableError(
            f"the variance of {count} numbers with correction {correction}",
            remedy="It is infinite or NaN; give correction=0 or more numbers.",
        )
    return biased * (count / freedom)


def _var_mean(
    g: Graph, expected: Expected, x: Value, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    mean = reduce(g, "ReduceMean", x, axes_of(x, dim), keepdims=keepdim)
    return _var(g, expected, x, dim, correction=correction, keepdim=keepdim), mean


def _vector_norm(
    g: Graph, expected: Expected, x: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False,
    *, dtype: Any = None,
) -> Value:  # fmt: skip
    x, axes = operand(g, x, expected.dtype), axes_of(x, dim)
    if ord in (1, 2):
        op_type = "ReduceL1" if ord == 1 else "ReduceL2"
        return g.op(op_type, x, g.integers(axes), keepdims=int(keepdim))
    if ord == 0:
        counted = elementwise(g, "Not", elementwise(g, "Equal", x, 0))
        return reduce(g, "ReduceSum", cast(g, counted, x.dtype), axes, keepdims=keepdim)
    magnitude = elementwise(g, "Abs", x)
    if math.isinf(ord):
        return extreme(g, "ReduceMax" if ord > 0 else "ReduceMin", magnitude, axes, keepdims=keepdim)
    powers = elementwise(g, "Pow", magnitude, ord)
    total = reduce(g, "ReduceSum", powers, axes, keepdims=keepdim)
    return elementwise(g, "Pow", total, 1 / ord)


def _cumsum(g: Graph, expected: Expected, x: Value, dim: int, **_: Any) -> Value:
    axis = g.integers([dim % max(x.rank, 1)])
    return g.op("CumSum", cast(g, x, expected.dtype), reshape(g, axis, ()))


def _softmax(
    op_type: str, g: Graph, expected: Expected, x: Value, dim: int, half_to_float: Any = False
) -> Value:
    return g.op(op_type, operand(g, x, expected.dtype), axis=dim % x.rank)


def _safe_softmax(g: Graph, expected: Expected, x: Value, dim: int, dtype: Any = None) -> Value:
    """Softmax whose rows of minus infinity alone are zero."""
    dim %= x.rank
    largest = reduce(g, "ReduceMax", x, [dim], keepdims=True)
    sees_nothing = elementwise(g, "Equal", largest, -math.inf)
    weights = g.op("Softmax", x, axis=dim)
    return elementwise(g, "Where", sees_nothing, 0, weights)


def _softmax_backward(
    g: Graph, expected: Expected, gradient: Value, y: Value, dim: int, dtype: Any = None
) -> Value:
    """Give ``y * g - y * sum(y * g)``.

    FlashAttention sums the attention's output times its gradient instead, which is the same and narrower. In
    a low precision that output is rounded, and what the rounding adds to the sum is the same all along a row.
    """
    gradient, scale = scale_apart(g, gradient)
    weighted = gradient * y
    total = reduce(g, "ReduceSum", weighted, [dim % y.rank], keepdims=True)
    return scaled(g, weighted - y * total, scale)


def _log_softmax_backward(
    g: Graph, expected: Expected, gradient: Value, y: Value, dim: int, dtype: Any = None
) -> Value:
    dim %= y.rank
    probabilities = elementwise(g, "Exp", y)
    placed = _one_a_row(g, gradient, dim)
    if placed is not None:
        index, share = placed
        return g.op("ScatterElements", probabilities * -share, index, share, axis=dim, reduction="add")
    total = reduce(g, "ReduceSum", gradient, [dim], keepdims=True)
    return gradient - probabilities * total


def _one_a_row(g: Graph, gradient: Value, dim: int) -> tuple[Value, Value] | None:
    """Find the one element of each row along `dim` that is not zero: where it is, and what."""
    placed = g.producer(gradient, "ScatterElements")
    if placed is None or placed.attributes["axis"] != dim or placed.attributes.get("reduction"):
        return None
    zeros, index, share = placed.inputs
    uniform = None if zeros is None else g.producer(zeros, "ConstantOfShape")
    if uniform is None or index is None or share is None or index.shape[dim] != 1:
        return None
    return (index, share) if not numpy_helper.to_array(uniform.attributes["value"]).any() else None


TRANSLATIONS: Table = table(
    ((aten.sum.default, aten.sum.dim_IntList), partial(_over, "ReduceSum")),
    ((aten.mean.default, aten.mean.dim), partial(_over, "ReduceMean")),
    ((aten.any.default, aten.any.dim, aten.any.dims), partial(_decided, "ReduceMax")),
    ((aten.all.default, aten.all.dim), partial(_decided, "ReduceMin")),
    ((aten.prod.default, aten.prod.dim_int), partial(_over, "ReduceProd")),
    (aten.cumprod.default, _cumprod),
    (aten.linalg_vector_norm.default, _vector_norm),
    (aten.var.correction, _var),
    (aten.var_mean.correction, _var_mean),
    (aten.cumsum.default, _cumsum),
    (aten._softmax.default, partial(_softmax, "Softmax")),
    (aten._log_softmax.default, partial(_softmax, "LogSoftmax")),
    (aten._safe_softmax.default, _safe_softmax),
    (aten._softmax_backward_data.default, _softmax_backward),
    (aten._log_softmax_backward_data.default, _log_softmax_backward),
)
