"""Functions near zero, where their plain forms lose digits."""

from campo_onnx.builder.compact import elementwise
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected


def log1p(g: Graph, expected: Expected, x: Value) -> Value:
    """Give log(1 + x)."""
    # log(1 + x) loses x below 1e-7; log(u) * x / (u - 1) with u = fl(1 + x) does not (Kahan).
    u = x + 1
    ratio = elementwise(g, "Log", u) * x / (u - 1)
    return elementwise(g, "Where", elementwise(g, "Equal", u, 1), x, ratio)


def expm1(g: Graph, expected: Expected, x: Value) -> Value:
    """Give exp(x) - 1."""
    # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), without the cancellation near 0.
    return elementwise(g, "Tanh", x * 0.5) * (elementwise(g, "Exp", x) + 1)
