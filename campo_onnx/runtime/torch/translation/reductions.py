"""Reductions over axes, and running sums."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import reduced_axes, shifted
from campo_onnx.runtime.torch.translation.node import Compute, Node, Row, static
from campo_onnx.runtime.torch.translation.values import Array, ints

_LOW = frozenset({torch.float16, torch.bfloat16})


def widened(x: Tensor) -> Tensor:
    """Convert FP16 and BF16 to FP32: what is computed of it is rounded once, at its end."""
    return x.float() if x.dtype in _LOW else x


def reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Row:
    """Make the row of a reduction; its result has the type of its input."""

    def compute(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
        over = reduced_axes(node, axes, x.dim())
        result = function(widened(x), [] if over is None else over, node.flag("keepdims", True))
        return result.to(x.dtype)

    return static(1)(compute)


def total(x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Add up; torch takes no axes for all of them."""
    return x.sum(list(axes), keepdim=keepdims, dtype=x.dtype) if axes else x


def mean(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    """Average; integers are rounded towards zero."""
    if not axes:
        return x
    if x.is_floating_point():
        return x.mean(axes, keepdim=keepdims)
    count = math.prod(x.shape[axis] for axis in axes)
    return torch.div(total(x, axes, keepdims), count, rounding_mode="trunc")


def extreme(function: Compute, beyond: float) -> Callable[[Tensor, list[int], bool], Tensor]:
    """Take the largest or smallest element; of none it is the farthest number of the type."""

    def compute(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        if not axes:
            return x
        if all(x.shape[axis] != 0 for axis in axes):
            return function(x, axes, keepdim=keepdims)
        shape = [1 if i in axes else size for i, size in enumerate(x.shape) if keepdims or i not in axes]
        return torch.full(shape, farthest(x.dtype, beyond), dtype=x.dtype, device=x.device)

    return compute


def farthest(dtype: torch.dtype, beyond: float) -> float | int | bool:
    """Return the end of a type's numbers towards an infinity."""
    if dtype.is_floating_point:
        return beyond
    if dtype == torch.bool:
        return beyond > 0
    return torch.iinfo(dtype).max if beyond > 0 else torch.iinfo(dtype).min


def product(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    """Multiply elements, an axis at a time, the last one first."""
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keepdims, dtype=x.dtype)
    return x


def norm(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    """Return the root of the sum of squares."""
    squares = total(x * x, axes, keepdims)
    return (squares if squares.is_floating_point() else squares.double()).sqrt()


def log_sum_exp(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    """Return the logarithm of the sum of exponentials."""
    floating = x if x.is_floating_point() else x.double()
    return torch.logsumexp(floating, axes, keepdim=keepdims) if axes else floating


def _log(x: Tensor) -> Tensor:
    return (x if x.is_floating_point() else x.double()).log()


def arg(function: Compute) -> Row:
    """Make the row of ArgMax or ArgMin: the first place of an extreme element, or the last."""

    def compute(node: Node, x: Tensor) -> Tensor:
        axis = shifted(node.get("axis", 0), x.dim())
        keepdims = node.flag("keepdims", True)
        if not node.flag("select_last_index"):
            return function(x, axis, keepdim=keepdims)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keepdims)

    return Row(compute)


def running(function: Compute, neutral: int) -> Compute:
    """Make the row of CumSum or CumProd."""

    def compute(node: Node, x: Tensor, axis: Array) -> Tensor:
        place = shifted(ints(axis)[0], x.dim())
        values = widened(x).flip(place) if node.flag("reverse") else widened(x)
        if node.flag("exclusive"):
            first = torch.full_like(values.narrow(place, 0, 1), neutral)
            values = torch.cat([first, values.narrow(place, 0, x.shape[place] - 1)], place)
        result = function(values, place, dtype=values.dtype).to(x.dtype)
        return result.flip(place) if node.flag("reverse") else result

    return compute


ROWS = {
    "ArgMax": arg(torch.argmax),
    "ArgMin": arg(torch.argmin),
    "CumProd": static(1)(running(torch.cumprod, 1)),
    "CumSum": static(1)(running(torch.cumsum, 0)),
    "ReduceL1": reduction(lambda x, axes, keepdims: total(x.abs(), axes, keepdims)),
    "ReduceL2": reduction(norm),
    "ReduceLogSum": reduction(lambda x, axes, keepdims: _log(total(x, axes, keepdims))),
    "ReduceLogSumExp": reduction(log_sum_exp),
    "ReduceMax": reduction(extreme(torch.amax, -math.inf)),
    "ReduceMean": reduction(mean),
    "ReduceMin": reduction(extreme(torch.amin, math.inf)),
    "ReduceProd": reduction(product),
    "ReduceSum": reduction(total),
    "ReduceSumSquare": reduction(lambda x, axes, keepdims: total(x * x, axes, keepdims)),
    "com.microsoft:ReduceSumTraining": reduction(total),
}
