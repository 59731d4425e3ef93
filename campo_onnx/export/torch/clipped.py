"""Functions of straight pieces: what is cut off at bounds, and activations made of that."""

from typing import Any

from campo_onnx.builder.compact import elementwise, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, operand
from campo_onnx.export.translation import Expected, Table, table

_BOUND = 3.0
"""Distance from 0 beyond which torch's hard sigmoid is flat."""


def _clamp(g: Graph, expected: Expected, x: Value, low: Any = None, high: Any = None) -> Value:
    x = operand(g, x, expected.dtype)
    if low is not None:
        x = elementwise(g, "Max", x, operand(g, low, expected.dtype))
    return x if high is None else elementwise(g, "Min", x, operand(g, high, expected.dtype))


def _hardtanh_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, low: float = -1, high: float = 1
) -> Value:
    inside = elementwise(g, "And", x > low, x < high)
    return elementwise(g, "Where", inside, gradient, 0)


def _hardsigmoid(g: Graph, expected: Expected, x: Value) -> Value:
    return g.op("HardSigmoid", x, alpha=0.5 / _BOUND, beta=0.5)


def _hardsigmoid_backward(g: Graph, expected: Expected, gradient: Value, x: Value) -> Value:
    inside = elementwise(g, "Abs", x) < _BOUND
    passed = elementwise(g, "Where", inside, gradient, 0)
    return scaled(g, passed, 0.5 / _BOUND)


def _hardswish_backward(g: Graph, expected: Expected, gradient: Value, x: Value) -> Value:
    # The slope is the hard sigmoid, and x / 6 more between the bounds. ThresholdedRelu keeps what is
    # above a bound, and nothing else: two are half as long as comparisons and Where on a CPU. The upper bound
    # is the lower one of -x: low kernels round the attribute, and know no number just below 3.
    right = g.op("ThresholdedRelu", x, alpha=-_BOUND)
    between = g.op("ThresholdedRelu", -right, alpha=-_BOUND)
    slope = _hardsigmoid(g, expected, x) + scaled(g, between, -0.5 / _BOUND)
    return gradient * slope


TRANSLATIONS: Table = table(
    ((aten.clamp.default, aten.clamp.Tensor), _clamp),
    (aten.hardtanh.default, lambda g, e, x, low=-1, high=1: _clamp(g, e, x, low, high)),
    (aten.hardtanh_backward.default, _hardtanh_backward),
    (aten.hardsigmoid.default, _hardsigmoid),
    (aten.hardsigmoid_backward.default, _hardsigmoid_backward),
    (aten.hardswish.default, lambda g, e, x: x * _hardsigmoid(g, e, x)),
    (aten.hardswish_backward.default, _hardswish_backward),
)
