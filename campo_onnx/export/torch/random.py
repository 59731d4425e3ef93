"""Random numbers: dropout's mask, and what modules draw themselves."""

from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, reshape, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, UntranslatableError, merged, table

_FLOAT = int(TensorProto.FLOAT)


def _dropout(g: Graph, expected: Expected, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    if not train:
        raise UntranslatableError("train=False")
    y, mask = g.ops("Dropout", x, g.scalar(p, _FLOAT), g.constant(np.True_), outputs=2)
    return y, mask


def _dropout_backward(g: Graph, expected: Expected, gradient: Value, mask: Value, scale: float) -> Value:
    # The factor comes last: a product that follows takes it along.
    masked = elementwise(g, "Where", mask, gradient, 0)
    return scaled(g, masked, scale)


def _bernoulli(g: Graph, expected: Expected, x: Value, p: float = 0.5, **_: Any) -> Value:
    uniform = _drawn("RandomUniform", g, Expected(dtype=_FLOAT, shape=expected.shape))
    return cast(g, uniform < p, expected.dtype)


def _exponential(g: Graph, expected: Expected, x: Value, rate: float = 1.0, **_: Any) -> Value:
    # Neither 0 nor 1: the logarithm of an exponential number is Gumbel noise, and both have to be finite.
    uniform = _drawn("RandomUniform", g, expected, low=2.0**-25, high=1 - 2.0**-24)
    return scaled(g, elementwise(g, "Log", uniform), -1 / rate)


def _drawn(
    op_type: str, g: Graph, expected: Expected, *_: Any, low: float = 0.0, high: float = 1.0, **__: Any
) -> Value:
    # An attribute without elements has no type, so that a single number is drawn as a vector.
    shape, bounds = (
        list(expected.shape) or [1],
        {} if (low, high) == (0.0, 1.0) else {"low": low, "high": high},
    )
    return reshape(g, g.op(op_type, shape=shape, dtype=expected.dtype, **bounds), expected.shape)


RANDOM: Table = table(
    (aten.native_dropout.default, _dropout),
    (aten.bernoulli.p, _bernoulli),
    (aten.exponential.default, _exponential),
    ((aten.rand.default, aten.rand_like.default), partial(_drawn, "RandomUniform")),
    ((aten.randn.default, aten.randn_like.default), partial(_drawn, "RandomNormal")),
)
"""Operations that draw random numbers: one that runs again for the gradient would draw others."""

TRANSLATIONS: Table = merged([RANDOM, table((aten.native_dropout_backward.default, _dropout_backward))])
