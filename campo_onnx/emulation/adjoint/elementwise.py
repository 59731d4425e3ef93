"""Derivatives of operators that compute element by element."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from campo_onnx.builder.compact import elementwise
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint.rule import Call, NoRuleError, Rule, of_shape

_Slope = Callable[[Graph, Value, Value], Value]


def _unary(slope: _Slope, g: Graph, call: Call) -> Sequence[Value]:
    """Multiply by the slope, a function of what the operator reads and writes."""
    return [call.gradient * slope(g, call.input(0), call.output)]


def _binary(rule: Rule, g: Graph, call: Call) -> Sequence[Value | None]:
    """Undo broadcasting after a rule for operands of one shape."""
    return [
        None if gradient is None or operand is None else of_shape(g, gradient, operand.shape)
        for gradient, operand in zip(rule(g, call), call.inputs, strict=False)
    ]


def _div(g: Graph, call: Call) -> Sequence[Value]:
    of_first = call.gradient / call.input(1)
    return [of_first, -(of_first * call.output)]


def _pow(g: Graph, call: Call) -> Sequence[Value | None]:
    base, exponent = call.input(0), call.input(1)
    one_less = exponent - 1.0
    of_base = call.gradient * exponent * g.op("Pow", base, one_less)
    if exponent.elements == 1:  # a number of the network; values below zero have no logarithm
        return [of_base, None]
    return [of_base, call.gradient * call.output * g.op("Log", base)]


def _where(g: Graph, call: Call) -> Sequence[Value | None]:
    chosen, gradient = call.input(0), call.gradient
    return [
        None,
        elementwise(g, "Where", chosen, gradient, 0.0),
        elementwise(g, "Where", chosen, 0.0, gradient),
    ]


def _extreme(g: Graph, call: Call) -> Sequence[Value]:
    """The gradient of Max and Min: to the first operand that is the result."""
    left = call.gradient
    gradients = []
    for position in range(len(call.inputs)):
        chosen = elementwise(g, "Equal", call.input(position), call.output)
        gradients.append(elementwise(g, "Where", chosen, left, 0.0))
        left = elementwise(g, "Where", chosen, 0.0, left)
    return gradients


def _clip(g: Graph, call: Call) -> Sequence[Value]:
    return [elementwise(g, "Where", elementwise(g, "Equal", call.input(0), call.output), call.gradient, 0.0)]


def _positive(g: Graph, x: Value, below: float) -> Value:
    """One where positive, and `below` elsewhere."""
    return elementwise(g, "Where", x > 0.0, g.scalar(1.0, x.dtype), below)


def _leaky(g: Graph, call: Call) -> Sequence[Value]:
    slope = _positive(g, call.input(0), float(call.attributes.get("alpha", 0.01)))
    return [call.gradient * slope]


def _density(g: Graph, x: Value) -> Value:
    """Slope of the error function."""
    return g.op("Exp", -(x * x)) * (2.0 / math.sqrt(math.pi))


def _gelu(g: Graph, call: Call) -> Sequence[Value]:
    x = call.input(0)
    if call.attributes.get("approximate", "none") == "tanh":
        root = math.sqrt(2.0 / math.pi)
        square = x * x
        inner = x * root * (1.0 + square * 0.044715)
        tanh = g.op("Tanh", inner)
        steep = (1.0 + square * (3 * 0.044715)) * root
        rest = _of_tanh(g, inner, tanh) * steep
    else:
        scaled = x * math.sqrt(0.5)
        tanh, rest = g.op("Erf", scaled), _density(g, scaled) * math.sqrt(0.5)
    return [call.gradient * (0.5 * (1.0 + tanh + x * rest))]


def _of_tanh(g: Graph, x: Value, y: Value) -> Value:
    return 1.0 - y * y


def _cast(g: Graph, call: Call) -> Sequence[Value | None]:
    if not call.input(0).is_float:
        return [None]
    if call.input(0).dtype != call.output.dtype:
        raise NoRuleError("Cast to another floating-point type")
    return [call.gradient]


def _of_dropout(g: Graph, x: Value, y: Value) -> Value:
    """Factor of each element: steps need not keep the mask. A zero stays one, and is not rounded."""
    return elementwise(g, "Where", elementwise(g, "Equal", x, 0.0), 0.0, y / x)


_SLOPES: Mapping[str, _Slope] = {
    "Exp": lambda g, x, y: y,
    "Log": lambda g, x, y: g.op("Reciprocal", x),
    "Sqrt": lambda g, x, y: 0.5 / y,
    "Reciprocal": lambda g, x, y: -(y * y),
    "Erf": lambda g, x, y: _density(g, x),
    "Tanh": _of_tanh,
    "Sigmoid": lambda g, x, y: y * (1.0 - y),
    "Dropout": _of_dropout,
    "Abs": lambda g, x, y: g.op("Sign", x),
    "Relu": lambda g, x, y: _positive(g, x, 0.0),
    "Softplus": lambda g, x, y: g.op("Sigmoid", x),
    "Sin": lambda g, x, y: g.op("Cos", x),
    "Cos": lambda g, x, y: -g.op("Sin", x),
}

_OPERANDS: Mapping[str, Rule] = {
    "Add": lambda g, call: [call.gradient, call.gradient],
    "Sub": lambda g, call: [call.gradient, -call.gradient],
    "Mul": lambda g, call: [call.gradient * call.input(1), call.gradient * call.input(0)],
    "Div": _div,
    "Pow": _pow,
    "Where": _where,
    "Max": _extreme,
    "Min": _extreme,
    "Sum": lambda g, call: [call.gradient] * len(call.inputs),
}

RULES: Mapping[str, Rule] = {
    **{name: partial(_unary, slope) for name, slope in _SLOPES.items()},
    **{name: partial(_binary, rule) for name, rule in _OPERANDS.items()},
    "Neg": lambda g, call: [-call.gradient],
    "Identity": lambda g, call: [call.gradient],
    "Cast": _cast,
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "Gelu": _gelu,
    **dict.fromkeys(
        ("Sign", "Floor", "Ceil", "Round", "RandomUniformLike", "RandomNormalLike"), lambda g, call: []
    ),
}
