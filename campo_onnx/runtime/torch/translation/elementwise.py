"""Arithmetic, comparisons, logic and casts, element by element."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Compute, Node, Row, plain
from campo_onnx.runtime.torch.translation.values import dtype_of

_WIDENED = frozenset({torch.uint16, torch.uint32})


def numeric(compute: Compute) -> Row:
    """Make the row of an operator that torch does not compute in 16 and 32 unsigned bits: 64 hold them."""

    def wide(node: Node, *inputs: Any) -> Any:
        dtype = next((x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _WIDENED), None)
        if dtype is None:
            return compute(node, *inputs)
        result = compute(node, *(x if x is None else x.to(torch.int64) for x in inputs))
        return result if result.dtype == torch.bool else result.to(dtype)

    return Row(wide)


def simple(compute: Compute) -> Row:
    """Make such a row of an operator without attributes."""
    return numeric(lambda node, *inputs: compute(*inputs))


def div(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers are rounded towards zero."""
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() or x.is_complex() else "trunc")


def mod(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder, of the sign of the divisor or, with ``fmod``, of the dividend."""
    return torch.fmod(x, y) if node.flag("fmod") else torch.remainder(x, y)


def power(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Raise to a power, which may be of another type; the result has that of the base."""
    if y.is_floating_point() and not x.is_floating_point():
        return torch.pow(x.to(y.dtype), y).to(x.dtype)
    if not x.is_floating_point() and y.dtype != x.dtype:
        return torch.pow(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)
    return torch.pow(x, y.to(x.dtype))


def _folded(function: Compute) -> Row:
    return numeric(lambda node, *inputs: functools.reduce(function, inputs))


def mean(node: Node, *inputs: Tensor) -> Tensor:
    """Average tensors, which are broadcast."""
    return functools.reduce(torch.add, inputs) / len(inputs)


def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Bound elements, by inputs or by attributes; where the bounds cross, the upper one wins."""
    smallest: Any = node.get("min") if low is None else low
    largest: Any = node.get("max") if high is None else high
    x = x if smallest is None else _at_least(x, smallest)
    return x if largest is None else _at_most(x, largest)


def _at_least(x: Tensor, bound: Any) -> Tensor:
    return torch.maximum(x, bound) if isinstance(bound, Tensor) else x.clamp(min=bound)


def _at_most(x: Tensor, bound: Any) -> Tensor:
    return torch.minimum(x, bound) if isinstance(bound, Tensor) else x.clamp(max=bound)


def cast(node: Node, x: Tensor) -> Tensor:
    """Convert to the type that the attribute names."""
    return to_dtype(x, dtype_of(node.get("to"), f"the Cast {node.name!r}"))


def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    """Convert to the type of another tensor."""
    return to_dtype(x, like.dtype)


def to_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert; a number that is not 0 is true, NaN as well."""
    return x.ne(0) if dtype == torch.bool and x.dtype != torch.bool else x.to(dtype)


def bit_cast(node: Node, x: Tensor) -> Tensor:
    """Take the bits for those of another type of the same width."""
    return x.view(dtype_of(node.get("to"), f"the BitCast {node.name!r}"))


def is_inf(node: Node, x: Tensor) -> Tensor:
    """Find infinities of the signs that the attributes ask for."""
    positive, negative = node.flag("detect_positive", True), node.flag("detect_negative", True)
    if positive and negative:
        return torch.isinf(x)
    if positive or negative:
        return x.eq(math.inf if positive else -math.inf)
    return torch.zeros_like(x, dtype=torch.bool)


def bit_shift(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Shift bits of unsigned integers; those that leave their width are lost."""
    shift = torch.bitwise_left_shift if node.get("direction") == "LEFT" else torch.bitwise_right_shift
    if x.dtype == torch.uint8:
        return shift(x, y)
    return shift(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)


def scale(node: Node, x: Tensor, by: Tensor) -> Tensor:
    """Multiply by one number, or by what it is the reciprocal of."""
    factor = by.reshape(())
    return x / factor.to(x.dtype) if node.flag("scale_down") else x * factor.to(x.dtype)


def scaled_sum(node: Node, *inputs: Tensor) -> Tensor:
    """Add tensors, a factor each."""
    scales = [node.get(f"scale_{number}") for number in range(len(inputs))]
    return functools.reduce(torch.add, (x * by for x, by in zip(inputs, scales, strict=True)))


ROWS = {
    "Abs": simple(torch.abs),
    "Acos": plain(torch.acos),
    "Acosh": plain(torch.acosh),
    "Add": simple(torch.add),
    "And": plain(torch.logical_and),
    "Asin": plain(torch.asin),
    "Asinh": plain(torch.asinh),
    "Atan": plain(torch.atan),
    "Atanh": plain(torch.atanh),
    "BitCast": Row(bit_cast),
    "BitShift": Row(bit_shift),
    "BitwiseAnd": simple(torch.bitwise_and),
    "BitwiseNot": simple(torch.bitwise_not),
    "BitwiseOr": simple(torch.bitwise_or),
    "BitwiseXor": simple(torch.bitwise_xor),
    "Cast": Row(cast),
    "CastLike": Row(cast_like),
    "Ceil": plain(torch.ceil),
    "Clip": numeric(clip),
    "Cos": plain(torch.cos),
    "Cosh": plain(torch.cosh),
    "Div": numeric(div),
    "Equal": simple(torch.eq),
    "Erf": plain(torch.erf),
    "Exp": plain(torch.exp),
    "Floor": plain(torch.floor),
    "Greater": simple(torch.gt),
    "GreaterOrEqual": simple(torch.ge),
    "IsInf": Row(is_inf),
    "IsNaN": plain(torch.isnan),
    "Less": simple(torch.lt),
    "LessOrEqual": simple(torch.le),
    "Log": plain(torch.log),
    "Max": _folded(torch.maximum),
    "Mean": numeric(mean),
    "Min": _folded(torch.minimum),
    "Mod": numeric(mod),
    "Mul": simple(torch.mul),
    "Neg": plain(torch.neg),
    "Not": plain(torch.logical_not),
    "Or": plain(torch.logical_or),
    "Pow": Row(power),
    "Reciprocal": plain(torch.reciprocal),
    "Round": plain(torch.round),
    "Sign": simple(torch.sign),
    "Sin": plain(torch.sin),
    "Sinh": plain(torch.sinh),
    "Sqrt": plain(torch.sqrt),
    "Sub": simple(torch.sub),
    "Sum": _folded(torch.add),
    "Tan": plain(torch.tan),
    "Where": plain(torch.where),
    "Xor": plain(torch.logical_xor),
    "com.microsoft:BiasAdd": Row(lambda node, x, bias, skip: x + bias + skip),
    "com.microsoft:GatedAdd": Row(lambda node, x, gate, y: x + gate * y),
    "com.microsoft:IsFinite": plain(torch.isfinite),
    "com.microsoft:Scale": Row(scale),
    "com.microsoft:ScaledSum": Row(scaled_sum),
}
