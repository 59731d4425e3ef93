"""Functions near zero, where their plain forms lose digits."""

from campo_onnx.builder.compact import elementwise
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected


def log1p(g: Graph, expected: Expected, x: Value) -> Value:
    """Give log(1 + x)."""
    # log(1 + x) loses x below 1e-7; log(u) * x / (u - 1) with u = fl(1 + x) does not (Kahan).
    one = g.scalar(1, x.dtype)
    u = elementwise(g, "Add", x, one)
    rest = elementwise(g, "Sub", u, one)
    ratio = elementwise(g, "Div", elementwise(g, "Mul", elementwise(g, "Log", u), x), rest)
    return elementwise(g, "Where", elementwise(g, "Equal", u, one), x, ratio)


def expm1(g: Graph, expected: Expected, x: Value) -> Value:
    """Give exp(x) - 1."""
    # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), without the cancellation near 0.
    half = elementwise(g, "Mul", x, g.scalar(0.5, x.dtype))
    tail = elementwise(g, "Add", elementwise(g, "Exp", x), g.scalar(1, x.dtype))
    return elementwise(g, "Mul", elementwise(g, "Tanh", half), tail)
