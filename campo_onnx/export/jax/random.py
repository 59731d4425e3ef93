"""Random bits.

ONNX Runtime draws numbers of its own, others in every step; a key only tells draws apart. What JAX makes of
a key that is constant is a constant, and is computed by JAX.
"""

from functools import partial, reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, reshape, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_UINT32, _FLOAT = int(TensorProto.UINT32), int(TensorProto.FLOAT)
_MANTISSA = 23
KEY = "key:"
"""Prefix of keys' names; no node has them."""
_EXPONENT_OF_ONE = 0x3F800000


def _key(how: str, g: Graph, expected: Expected, *operands: Value, **parameters: Any) -> Value:
    """Make a key of others: only which one it is matters, and no node reads it."""
    told = ",".join(f"{k}={v}" for k, v in sorted(parameters.items()) if isinstance(v, int | tuple))
    name = f"{KEY}{how}({','.join(operand.name for operand in operands)};{told})"
    return Value(name=name, dtype=expected.dtype, shape=expected.shape)


def _random_bits(g: Graph, expected: Expected, key: Value, *, bit_width: int) -> Value:
    """Draw as many bits as the mantissa of a float has, the others being zero."""
    if bit_width != 32:
        raise UntranslatableError(f"random bits of {bit_width}")
    draw = (key.name, expected.shape)
    if draw not in g.drawn:
        shape = list(expected.shape) or [1]
        uniform = g.op("RandomUniform", shape=shape, dtype=_FLOAT)
        whole = elementwise(g, "Floor", scaled(g, uniform, 2.0**_MANTISSA))
        bits = g.op(
            "BitShift",
            g.op("Cast", whole, to=_UINT32),
            g.constant(np.uint32(32 - _MANTISSA)),
            direction="LEFT",
        )
        g.drawn[draw] = reshape(g, bits, expected.shape)
    return g.drawn[draw]


def _shifted(direction: str, g: Graph, expected: Expected, x: Value, count: Value) -> Value:
    if not np.issubdtype(x.numpy_dtype, np.unsignedinteger):
        raise UntranslatableError("bits of a signed number")
    return g.op("BitShift", x, count, direction=direction)


def _bitcast(g: Graph, expected: Expected, x: Value) -> Value:
    """Read a mantissa below the exponent of 1 as a float from 1 on; anything else is not a random number."""
    if x.constant is not None:
        return g.constant(x.constant.view(expected.numpy_dtype))
    producer = g.producer(x, "BitwiseOr")
    operands = [] if producer is None else [v for v in producer.inputs if v is not None]
    mantissa = [v for v in operands if v.constant is None]
    exponent = [v for v in operands if v.constant is not None and np.all(v.constant == _EXPONENT_OF_ONE)]
    if expected.dtype != _FLOAT or len(mantissa) != 1 or len(exponent) != 1:
        raise UntranslatableError("the bits of a number")
    return scaled(g, cast(g, mantissa[0], _FLOAT), 2.0**-_MANTISSA) + 1


def _erf_inverse(g: Graph, expected: Expected, x: Value) -> Value:
    """Invert the error function by the polynomials of Giles, as XLA does."""
    w = -elementwise(g, "Log", 1 - x * x)
    near = _polynomial(g, w - 2.5, _CENTRE)
    far = _polynomial(g, elementwise(g, "Sqrt", w) - 3.0, _TAIL)
    return elementwise(g, "Where", w < 5.0, near, far) * x


def _polynomial(g: Graph, x: Value, coefficients: tuple[float, ...]) -> Value:
    first, *others = coefficients
    return reduce(lambda total, coefficient: total * x + coefficient, others, g.scalar(first, x.dtype))


_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)

KEYS = ("random_seed", "random_wrap", "random_unwrap", "random_split", "random_fold_in", "random_clone")
"""Primitives that make keys."""

TRANSLATIONS: Table = table(
    *((name, partial(_key, name)) for name in KEYS),
    ("random_bits", _random_bits),
    ("shift_right_logical", partial(_shifted, "RIGHT")),
    ("shift_left", partial(_shifted, "LEFT")),
    ("bitcast_convert_type", _bitcast),
    ("erf_inv", _erf_inverse),
)
