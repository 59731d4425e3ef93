"""Normalizations, whole and in pieces, forward and backward."""

import numpy as np

from tests.random_graphs.builder import Builder


def _channels(b: Builder) -> str:
    return b.pick(
        lambda v: v.ndim >= 3 and v.size > 0,
        (
            b.rng.choice((1, 2)),
            b.rng.choice((2, 4)),
            *(b.rng.choice((3, 4)) for _ in range(b.rng.choice((1, 2)))),
        ),
    )


def batch(b: Builder) -> None:
    """BatchNormalization of inference and of training."""
    x = _channels(b)
    c = b[x].shape[1]
    scale, bias, mean = (b.of_shape((c,)) for _ in range(3))
    variance = b.constant(np.abs(b.data((c,))) + 0.5)
    inputs = [x, scale, bias, mean, variance]
    if b.opset >= 14 and b.chance(3):
        # ONNX Runtime's CPU provider crashes where a statistic is left out, and writes into the given ones.
        statistics = [b.constant(b[mean] + 0.25), b.constant(b[variance] + 0.25)]
        b.private.update(statistics)
        b.emit_all("BatchNormalization", [*inputs[:3], *statistics], 3, training_mode=1)
    else:
        b.emit("BatchNormalization", inputs, epsilon=b.rng.choice((None, 1e-3)))


def layer(b: Builder) -> None:
    """LayerNormalization with any of its outputs."""
    x = b.of_rank(2, 3)
    axis = b.rng.randrange(-1, b[x].ndim)
    shape = b[x].shape[axis:] if axis else b[x].shape
    bias = [b.of_shape(shape)] if b.chance(2) else []
    wanted = [True, b.chance(3), b.chance(3)]
    b.emit_all("LayerNormalization", [x, b.of_shape(shape), *bias], wanted, axis=axis, epsilon=1e-3)


def group(b: Builder) -> None:
    """GroupNormalization (opset 21) and InstanceNormalization."""
    x = _channels(b)
    c = b[x].shape[1]
    pair = [b.of_shape((c,)), b.of_shape((c,))]
    if b.opset >= 21 and b.chance(2):
        b.emit("GroupNormalization", [x, *pair], num_groups=b.rng.choice((1, c)), epsilon=1e-3)
    else:
        b.emit("InstanceNormalization", [x, *pair], epsilon=1e-3)


def rms(b: Builder) -> None:
    """RMSNormalization, whose output has the type of its scale."""
    x = b.of_rank(2, 3)
    b.emit("RMSNormalization", [x, b.of_shape(b[x].shape[-1:])], axis=-1, epsilon=1e-3)


def simplified(b: Builder) -> None:
    """Normalizations that ONNX Runtime puts into the standard domain or its own."""
    x = b.of_rank(3)
    scale = b.of_shape(b[x].shape[-1:])
    if b.chance(2):
        skip = b.of_shape(b[x].shape)
        b.emit("SkipSimplifiedLayerNormalization", [x, skip, scale], domain="com.microsoft", epsilon=1e-3)
    else:
        skip, bias = b.of_shape(b[x].shape), b.of_shape(b[x].shape[-1:])
        inputs = [x, skip, scale, bias]
        b.emit("SkipLayerNormalization", inputs, domain="com.microsoft", epsilon=1e-3)


def in_pieces(b: Builder) -> None:
    """A layer normalization as exporters decompose it, with epsilons of every size, and its gradient."""
    x = b.of_rank(2, 3)
    epsilon = b.constant(b.rng.choice((1e-3, 1e-5, 1e-6, 1e-12)), np.float32)
    mean = b.reducing("ReduceMean", x, [-1] if b.opset >= 11 else [b[x].ndim - 1])
    centred = b.emit("Sub", [x, mean])
    if b.chance(2):
        squares = b.emit("Mul", [centred, centred], wild=True)
    else:
        squares = b.emit("Pow", [centred, b.constant(2.0, np.float32)], wild=True)
    variance = b.reducing("ReduceMean", squares, [-1] if b.opset >= 11 else [b[x].ndim - 1], wild=True)
    deviation = b.emit("Sqrt", [b.emit("Add", [variance, epsilon], wild=True)], wild=True)
    if b.chance(2):
        result = b.emit("Div", [centred, deviation])
    else:
        result = b.emit("Mul", [centred, b.emit("Reciprocal", [deviation], wild=True)])
    if b.chance(2):
        gradient = b.of_shape(b[x].shape)
        scale = b.emit("Div", [gradient, deviation], wild=True)
        inner = b.reducing("ReduceSum", b.emit("Mul", [scale, result], wild=True), [b[x].ndim - 1], wild=True)
        b.emit("Sub", [scale, b.emit("Mul", [result, inner], wild=True)], wild=True)
