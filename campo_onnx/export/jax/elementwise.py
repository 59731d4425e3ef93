"""Elementwise primitives."""

from functools import partial
from typing import Any

from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected, Table, UntranslatableError, expm1, log1p, table

_BOOL = int(TensorProto.BOOL)
_TO_NEAREST_EVEN = 1

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "add_any": "Add", "asin": "Asin",
    "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh",
    "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual",
    "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "neg": "Neg", "pow": "Pow", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_ON_BOOL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_IDENTITIES = ("copy", "copy_p", "optimization_barrier", "stop_gradient")


def _same(op_type: str, g: Graph, expected: Expected, *operands: Value, out_dtype: Any = None) -> Value:
    if out_dtype is not None:
        operands = tuple(cast(g, operand, expected.dtype) for operand in operands)
    return elementwise(g, op_type, *operands)


def _on_bool(op_type: str, g: Graph, expected: Expected, *operands: Value) -> Value:
    if expected.dtype == _BOOL:
        return elementwise(g, op_type, *operands)
    return elementwise(g, f"Bitwise{op_type}", *operands)


def _square(g: Graph, expected: Expected, x: Value) -> Value:
    return x * x


def _integer_pow(g: Graph, expected: Expected, x: Value, *, y: int) -> Value:
    if y == 2:
        return _square(g, expected, x)
    if y == -1:
        return elementwise(g, "Reciprocal", x)
    return elementwise(g, "Pow", x, y)


def _rounded(g: Graph, expected: Expected, x: Value, *, rounding_method: Any) -> Value:
    if int(rounding_method) == _TO_NEAREST_EVEN:
        return elementwise(g, "Round", x)
    # Halves away from zero: below 2**23 there is room for one.
    magnitude = elementwise(g, "Abs", x)
    low = elementwise(g, "Floor", magnitude)
    is_up = magnitude - low >= 0.5
    up = elementwise(g, "Where", is_up, low + 1, low)
    return elementwise(g, "Where", x < 0, -up, up)


def _select(g: Graph, expected: Expected, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or which.dtype != _BOOL:
        raise UntranslatableError("more than two cases")
    return elementwise(g, "Where", which, cases[1], cases[0])


TRANSLATIONS: Table = table(
    *((name, partial(_same, op_type)) for name, op_type in _SAME.items()),
    *((name, partial(_on_bool, op_type)) for name, op_type in _ON_BOOL.items()),
    (_IDENTITIES, lambda g, e, *operands: operands if len(operands) > 1 else operands[0]),
    ("ne", lambda g, e, a, b: elementwise(g, "Not", elementwise(g, "Equal", a, b))),
    ("rem", lambda g, e, a, b: g.op("Mod", a, b, fmod=1)),  # with the sign of the dividend, as in C
    ("square", _square),
    ("rsqrt", lambda g, e, x: elementwise(g, "Reciprocal", elementwise(g, "Sqrt", x))),
    ("round", _rounded),
    ("integer_pow", _integer_pow),
    ("log1p", log1p),
    ("expm1", expm1),
    ("erfc", lambda g, e, x: 1 - elementwise(g, "Erf", x)),
    ("select_n", _select),
    ("clamp", lambda g, e, low, x, high: elementwise(g, "Min", elementwise(g, "Max", x, low), high)),
    ("is_finite", lambda g, e, x: elementwise(g, "Equal", x - x, 0)),
    ("convert_element_type", lambda g, e, x: cast(g, x, e.dtype)),
)
