"""Rectifiers and their gradients, masked once where several tensors or fewer values allow it."""

from campo_onnx.builder.compact import elementwise, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Node, Value
from campo_onnx.export.torch.joined import first_input, joined_rectified
from campo_onnx.export.torch.operands import aten, operand
from campo_onnx.export.translation import Expected, Table, table

_PLACING = {"MaxUnpool": 0, "ScatterElements": 2}
"""Operators that put values in their places, and which input these are; the second says which places."""


def passed(g: Graph, gradient: Value, x: Value, threshold: float = 0.0) -> Value:
    """Give the gradient where `x` is above a threshold, and 0 elsewhere."""
    return elementwise(g, "Where", x > threshold, gradient, 0)


def _shrunk_backward(g: Graph, expected: Expected, gradient: Value, x: Value, threshold: float) -> Value:
    """Give the gradient where `x` is further from zero than a threshold, or NaN."""
    return elementwise(g, "Where", elementwise(g, "Abs", x) <= threshold, 0, gradient)


def _relu(g: Graph, expected: Expected, x: Value) -> Value:
    x = operand(g, x, expected.dtype)
    # Providers have kernels of Relu for floating point alone.
    return elementwise(g, "Relu", x) if x.is_float else elementwise(g, "Max", x, 0)


def _threshold_backward(g: Graph, expected: Expected, gradient: Value, x: Value, threshold: float) -> Value:
    if threshold == 0 and (masked := _masked_maxima(g, gradient, x)) is not None:
        return masked
    whole = joined_rectified(g, gradient, x) if threshold == 0 else None
    if whole is not None:
        # The branches of a block end in a Concat: what masks its gradient masks those of all of them.
        cut, joined = whole
        masked = _threshold_backward(g, expected, first_input(cut), joined, threshold)
        return g.op("Slice", masked, *cut.inputs[1:], **cut.attributes)
    return passed(g, gradient, x, threshold)


def _masked_maxima(g: Graph, gradient: Value, x: Value) -> Value | None:
    """Mask a gradient of `x` that puts that of its maxima in place: before that, when there is less of it.

    Done here and not with the pool: whoever else reads the pool's gradient, a hook, gets all of it.
    """
    place = _behind_views(g, gradient)
    if place is None or place.op_type not in _PLACING:
        return None
    inputs, position = list(place.inputs), _PLACING[place.op_type]
    small, pool = inputs[position], _behind_views(g, inputs[1])
    if small is None or pool is None or pool.op_type != "MaxPool" or pool.inputs[0] is not x:
        return None
    maxima = pool.outputs[0]
    inputs[position] = reshape(g, passed(g, reshape(g, small, maxima.shape), maxima), small.shape)
    return reshape(g, g.op(place.op_type, *inputs, **place.attributes), gradient.shape)


def _behind_views(g: Graph, value: Value | None) -> Node | None:
    node = None if value is None else g.source(value)
    return _behind_views(g, node.inputs[0]) if node is not None and node.op_type == "Reshape" else node


def _leaky_relu_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, slope: float, is_result: bool
) -> Value:
    slopes = elementwise(g, "Where", x > 0, g.scalar(1, x.dtype), slope)
    return gradient * slopes


TRANSLATIONS: Table = table(
    (aten.relu.default, _relu),
    (aten.leaky_relu.default, lambda g, e, x, slope=0.01: g.op("LeakyRelu", x, alpha=float(slope))),
    (aten.leaky_relu_backward.default, _leaky_relu_backward),
    ((aten.softshrink_backward.default, aten.hardshrink_backward.default), _shrunk_backward),
    (aten.threshold_backward.default, _threshold_backward),
)
