"""Rectifiers and other functions of straight pieces, with their gradients.

A gradient is masked once where several tensors or fewer values allow it.
"""

from typing import Any

from campo_onnx.builder.compact import elementwise, reshape, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.peepholes import part_of
from campo_onnx.builder.value import Node, Value
from campo_onnx.export.torch.operands import aten, operand
from campo_onnx.export.translation import Expected, Table, table


def _joined_rectified(g: Graph, gradient: Value, x: Value) -> tuple[Node, Value] | None:
    """Find what a rectified tensor is joined to with others such that one mask serves all of them.

    The Slice cuts the gradient of `x` out of a whole one, which is that of a Concat of `x` and others. None
    unless all of them are rectified and nobody else reads one.
    """
    cut = g.producer(gradient, "Slice")
    joined = _only_reader(g, x, "Concat")
    if cut is None or joined is None or not all(_is_rectified(g, v) for v in joined.inputs):
        return None
    whole, before = joined.outputs[0], 0
    for part in joined.inputs:
        if part is x:
            break
        assert part is not None  # a Concat leaves out none
        before += part.shape[joined.attributes["axis"]]
    place = (joined.attributes["axis"], before, before + x.shape[joined.attributes["axis"]])
    return (cut, whole) if _first_input(cut).shape == whole.shape and part_of(cut) == place else None


def _first_input(node: Node) -> Value:
    """Give what a node reads first."""
    assert node.inputs[0] is not None  # nobody asks for one that is left out
    return node.inputs[0]


def _is_rectified(g: Graph, x: Value | None) -> bool:
    if x is None or _only_reader(g, x, "Concat") is None:
        return False
    inner = g.producer(x, "Concat")
    return g.producer(x, "Relu") is not None or (
        inner is not None and all(_is_rectified(g, v) for v in inner.inputs)
    )


def _only_reader(g: Graph, x: Value, op_type: str) -> Node | None:
    readers = g.consumers(x)
    once = len(readers) == 1 and readers[0].op_type == op_type and sum(v is x for v in readers[0].inputs) == 1
    return readers[0] if once else None


_PLACING = {"MaxUnpool": 0, "ScatterElements": 2}
"""Operators that put values in their places, and which input these are; the second says which places."""


def passed(g: Graph, gradient: Value, x: Value, threshold: float = 0.0) -> Value:
    """Give the gradient where `x` is above a threshold, and 0 elsewhere."""
    return elementwise(g, "Where", x > threshold, gradient, 0)


def _relu(g: Graph, expected: Expected, x: Value) -> Value:
    x = operand(g, x, expected.dtype)
    # Providers have kernels of Relu for floating point alone.
    return elementwise(g, "Relu", x) if x.is_float else elementwise(g, "Max", x, 0)


def _threshold_backward(g: Graph, expected: Expected, gradient: Value, x: Value, threshold: float) -> Value:
    if threshold == 0 and (masked := _masked_maxima(g, gradient, x)) is not None:
        return masked
    whole = _joined_rectified(g, gradient, x) if threshold == 0 else None
    if whole is not None:
        # The branches of a block end in a Concat: what masks its gradient masks those of all of them.
        cut, joined = whole
        masked = _threshold_backward(g, expected, _first_input(cut), joined, threshold)
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
    return scaled(g, elementwise(g, "Where", inside, gradient, 0), 0.5 / _BOUND)


def _hardswish_backward(g: Graph, expected: Expected, gradient: Value, x: Value) -> Value:
    # The slope is the hard sigmoid, and x / 6 more between the bounds. ThresholdedRelu keeps what is
    # above a bound, and nothing else: two are half as long as comparisons and Where on a CPU. The upper bound
    # is the lower one of -x: low kernels round the attribute, and know no number just below 3.
    right = g.op("ThresholdedRelu", x, alpha=-_BOUND)
    between = g.op("ThresholdedRelu", -right, alpha=-_BOUND)
    slope = _hardsigmoid(g, expected, x) + scaled(g, between, -0.5 / _BOUND)
    return gradient * slope


TRANSLATIONS: Table = table(
    (aten.relu.default, _relu),
    (aten.leaky_relu.default, lambda g, e, x, slope=0.01: g.op("LeakyRelu", x, alpha=float(slope))),
    (aten.leaky_relu_backward.default, _leaky_relu_backward),
    (
        (aten.softshrink_backward.default, aten.hardshrink_backward.default),  # NaN counts as far from zero
        lambda g, e, gradient, x, bound: elementwise(
            g, "Where", elementwise(g, "Abs", x) <= bound, 0, gradient
        ),
    ),
    (aten.threshold_backward.default, _threshold_backward),
    ((aten.clamp.default, aten.clamp.Tensor), _clamp),
    (aten.hardtanh.default, lambda g, e, x, low=-1, high=1: _clamp(g, e, x, low, high)),
    (aten.hardtanh_backward.default, _hardtanh_backward),
    (aten.hardsigmoid.default, _hardsigmoid),
    (aten.hardsigmoid_backward.default, _hardsigmoid_backward),
    (aten.hardswish.default, lambda g, e, x: x * _hardsigmoid(g, e, x)),
    (aten.hardswish_backward.default, _hardswish_backward),
)
