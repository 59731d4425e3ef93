"""Elementwise operations."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, expand, full, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import FLOATS, aten, operand, promoted
from campo_onnx.export.translation import Expected, Table, expm1, log1p, table

_BOOL, _INT32 = int(TensorProto.BOOL), int(TensorProto.INT32)


def _unary(op_type: str, g: Graph, expected: Expected, x: Value) -> Value:
    return elementwise(g, op_type, operand(g, x, expected.dtype))


def _binary(op_type: str, g: Graph, expected: Expected, a: Any, b: Any) -> Value:
    return elementwise(g, op_type, operand(g, a, expected.dtype), operand(g, b, expected.dtype))


def _scaled(op_type: str, g: Graph, expected: Expected, a: Any, b: Any, *, alpha: float = 1) -> Value:
    other = operand(g, b, expected.dtype)
    if alpha != 1:
        other = other * alpha
    return elementwise(g, op_type, operand(g, a, expected.dtype), other)


def _add(g: Graph, expected: Expected, a: Any, b: Any, *, alpha: float = 1) -> Value:
    if expected.dtype == _BOOL:
        return _binary("Or", g, expected, a, b)
    return _scaled("Add", g, expected, a, b, alpha=alpha)


def _or_on_bool(op_type: str, on_bool: str, g: Graph, expected: Expected, a: Any, b: Any) -> Value:
    return _binary(on_bool if expected.dtype == _BOOL else op_type, g, expected, a, b)


def _div_mode(g: Graph, expected: Expected, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return _binary("Div", g, expected, a, b)
    if expected.dtype in FLOATS and rounding_mode == "floor":
        return _floor_of_quotient(g, operand(g, a, expected.dtype), operand(g, b, expected.dtype))
    if expected.dtype in FLOATS:
        return _trunc(g, expected, _binary("Div", g, expected, a, b))
    a, b = operand(g, a, expected.dtype), operand(g, b, expected.dtype)
    if rounding_mode == "floor":
        # ONNX's quotient of integers rounds to zero, its remainder has the divisor's sign.
        a = a - elementwise(g, "Mod", a, b)
    return a / b


def _floor_of_quotient(g: Graph, a: Value, b: Value) -> Value:
    """Say how often `b` fits into `a`; what is divided by zero is infinite.

    Not the floor of a quotient, which rounds: 0.5 holds 0.1, as FP32 has it, four times.
    """
    rest = g.op("Mod", a, b, fmod=1)
    whole = g.op("Round", (a - rest) / b)
    floor = elementwise(g, "Where", _has_other_sign(g, rest, b), whole - 1, whole)
    if b.constant is not None and np.all(b.constant):
        return floor
    return elementwise(g, "Where", elementwise(g, "Equal", b, 0), a / b, floor)


def _has_other_sign(g: Graph, rest: Value, divisor: Value) -> Value:
    """Say where a remainder that has the sign of what was divided has not that of the divisor."""
    # Not of the product of both: where they are small that is zero.
    return rest * elementwise(g, "Sign", divisor) < 0


def _remainder(g: Graph, expected: Expected, a: Any, b: Any) -> Value:
    a, b = operand(g, a, expected.dtype), operand(g, b, expected.dtype)
    if expected.dtype not in FLOATS:
        return elementwise(g, "Mod", a, b)
    # As C's fmod, which is exact, but with the sign of the divisor.
    rest = g.op("Mod", a, b, fmod=1)
    return elementwise(g, "Where", _has_other_sign(g, rest, b), rest + b, rest)


def _trunc(g: Graph, expected: Expected, x: Value) -> Value:
    x = operand(g, x, expected.dtype)
    if expected.dtype not in FLOATS:
        return x
    return elementwise(g, "Sign", x) * elementwise(g, "Floor", elementwise(g, "Abs", x))


def _compared(op_type: str, negate: bool, g: Graph, expected: Expected, a: Value, b: Any) -> Value:
    dtype = promoted(a, b)
    if dtype == _BOOL and op_type != "Equal":  # ONNX orders numbers only
        dtype = _INT32
    result = elementwise(g, op_type, operand(g, a, dtype), operand(g, b, dtype))
    return elementwise(g, "Not", result) if negate else result


def _where(g: Graph, expected: Expected, condition: Value, a: Any, b: Any) -> Value:
    return elementwise(
        g, "Where", cast(g, condition, _BOOL), operand(g, a, expected.dtype), operand(g, b, expected.dtype)
    )


def _pow(g: Graph, expected: Expected, base: Any, exponent: Any) -> Value:
    base = operand(g, base, expected.dtype)
    if exponent == 2:
        return base * base
    if exponent in (0.5, -0.5):
        root = elementwise(g, "Sqrt", base)
        return root if exponent > 0 else elementwise(g, "Reciprocal", root)
    return elementwise(g, "Pow", base, operand(g, exponent, expected.dtype))


def _rsqrt(g: Graph, expected: Expected, x: Value) -> Value:
    return elementwise(g, "Reciprocal", elementwise(g, "Sqrt", operand(g, x, expected.dtype)))


def _elu(
    g: Graph, expected: Expected, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    grown = expm1(g, expected, x * input_scale)
    return elementwise(g, "Where", x > 0, x * scale, grown * (alpha * scale))


def _gelu_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, *, approximate: str = "none"
) -> Value:
    if approximate == "tanh":
        square = x * x
        slope, cubic = math.sqrt(2 / math.pi), 0.044715
        tanh = elementwise(g, "Tanh", x * (square * (slope * cubic) + slope))
        density = (1 - tanh * tanh) * (square * (1.5 * slope * cubic) + 0.5 * slope)
        return gradient * ((tanh + 1) * 0.5 + x * density)
    # With s = x / sqrt(2): (1 + erf(s) + s * 2 / sqrt(pi) * exp(-s * s)) / 2. The constant goes into the
    # exponent, and the half comes last: a product that follows takes it along.
    s, level = x * math.sqrt(0.5), math.log(2 / math.sqrt(math.pi))
    doubled = elementwise(g, "Erf", s) + 1 + s * elementwise(g, "Exp", level - s * s)
    return scaled(g, gradient * doubled, 0.5)


def _to_copy(g: Graph, expected: Expected, x: Value, *_: Any, **__: Any) -> Value:
    return cast(g, x, expected.dtype)


def _constant(number: float, g: Graph, expected: Expected, *_: Any, **__: Any) -> Value:
    return full(g, expected.shape, number, expected.dtype)


_UNARY = {
    "Abs": aten.abs, "Neg": aten.neg, "Exp": aten.exp, "Log": aten.log, "Sqrt": aten.sqrt, "Sin": aten.sin,
    "Cos": aten.cos, "Tan": aten.tan, "Tanh": aten.tanh, "Sigmoid": aten.sigmoid, "Erf": aten.erf,
    "Reciprocal": aten.reciprocal, "Sign": aten.sign, "Floor": aten.floor,
    "Ceil": aten.ceil, "Round": aten.round, "Atan": aten.atan, "Asin": aten.asin, "Acos": aten.acos,
    "Sinh": aten.sinh, "Cosh": aten.cosh, "Asinh": aten.asinh, "Acosh": aten.acosh, "Atanh": aten.atanh,
    "Not": aten.logical_not,
}  # fmt: skip
_COMPARED = {
    "eq": ("Equal", False), "ne": ("Equal", True), "gt": ("Greater", False), "ge": ("GreaterOrEqual", False),
    "lt": ("Less", False), "le": ("LessOrEqual", False),
}  # fmt: skip

_ZEROS = (
    *(aten.zeros_like.default, aten.zeros.default, aten.new_zeros.default, aten.empty_like.default),
    *(aten.empty.memory_format, aten.empty_permuted.default, aten.new_empty_strided.default),
)


def _bitwise(op_type: str, g: Graph, expected: Expected, *operands: Any) -> Value:
    name = op_type if expected.dtype == _BOOL else f"Bitwise{op_type}"
    return elementwise(g, name, *(operand(g, x, expected.dtype) for x in operands))


TRANSLATIONS: Table = table(
    *((op.default, partial(_unary, op_type)) for op_type, op in _UNARY.items()),
    *(
        (overload, partial(_compared, *rule))
        for name, rule in _COMPARED.items()
        for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    ),
    ((aten.add.Tensor, aten.add.Scalar), _add),
    ((aten.sub.Tensor, aten.sub.Scalar), partial(_scaled, "Sub")),
    ((aten.mul.Tensor, aten.mul.Scalar), partial(_or_on_bool, "Mul", "And")),
    ((aten.div.Tensor, aten.div.Scalar), partial(_binary, "Div")),
    ((aten.div.Tensor_mode, aten.div.Scalar_mode), _div_mode),
    ((aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar), _pow),
    (aten.maximum.default, partial(_or_on_bool, "Max", "Or")),
    (aten.minimum.default, partial(_or_on_bool, "Min", "And")),
    (aten.logical_and.default, partial(_binary, "And")),
    (aten.logical_or.default, partial(_binary, "Or")),
    (aten.logical_xor.default, partial(_binary, "Xor")),
    ((aten.bitwise_and.Tensor, aten.bitwise_and.Scalar), partial(_bitwise, "And")),
    ((aten.bitwise_or.Tensor, aten.bitwise_or.Scalar), partial(_bitwise, "Or")),
    ((aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar), partial(_bitwise, "Xor")),
    (aten.bitwise_not.default, partial(_bitwise, "Not")),
    (aten.isnan.default, lambda g, e, x: elementwise(g, "IsNaN", x)),
    (aten.isinf.default, lambda g, e, x: elementwise(g, "IsInf", x)),
    (aten.where.self, _where),
    (
        (aten.fmod.Tensor, aten.fmod.Scalar),
        lambda g, e, a, b: g.op("Mod", operand(g, a, e.dtype), operand(g, b, e.dtype), fmod=1),
    ),
    ((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), _remainder),
    (aten.trunc.default, _trunc),
    (aten.rsqrt.default, _rsqrt),
    (aten.log1p.default, log1p),
    (aten.expm1.default, expm1),
    (aten.elu.default, _elu),
    (aten.gelu.default, lambda g, e, x, *, approximate="none": g.op("Gelu", x, approximate=approximate)),
    (aten.gelu_backward.default, _gelu_backward),
    ((aten._to_copy.default, torch.ops.prims.convert_element_type.default), _to_copy),
    (
        (aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default),
        lambda g, e, x, **_: x,
    ),
    (aten.copy.default, lambda g, e, x, source, *_: expand(g, cast(g, source, e.dtype), e.shape)),
    ((aten.full_like.default, aten.full.default), lambda g, e, _, number, **__: _constant(number, g, e)),
    ((aten.ones_like.default, aten.ones.default), partial(_constant, 1)),
    (_ZEROS, partial(_constant, 0)),
    (aten.scalar_tensor.default, lambda g, e, number, **_: full(g, (), number, e.dtype)),
)
