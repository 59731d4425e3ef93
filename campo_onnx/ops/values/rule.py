"""Types of an operator's rules, and questions that rules ask of inputs."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from onnx import TensorProto

from campo_onnx.ops.signature import Shape, Signature
from campo_onnx.ops.values.range import UNKNOWN, UNKNOWN_INTEGER, ValueRange, made

Ranges: TypeAlias = tuple[ValueRange | None, ...]
Rule: TypeAlias = Callable[[Signature, Ranges], tuple[ValueRange, ...]]

_INTEGER_BOUNDS = {
    int(TensorProto.BOOL): (0.0, 1.0),
    int(TensorProto.UINT8): (0.0, 255.0),
    int(TensorProto.INT8): (-128.0, 127.0),
    int(TensorProto.UINT16): (0.0, 65535.0),
    int(TensorProto.INT16): (-32768.0, 32767.0),
}
_WIDE_INTEGERS = frozenset(
    int(dtype) for dtype in (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
)


@cache
def of_type(dtype: int) -> ValueRange:
    """Range that follows from a tensor's type alone."""
    if dtype in _INTEGER_BOUNDS:
        lowest, highest = _INTEGER_BOUNDS[dtype]
        return made(lowest, highest, -1.0, 1.0, like=UNKNOWN_INTEGER)
    return UNKNOWN_INTEGER if dtype in _WIDE_INTEGERS else UNKNOWN


def present(inputs: Ranges) -> tuple[ValueRange, ...]:
    """The inputs that are there."""
    return tuple(r for r in inputs if r is not None)


def at(inputs: Ranges, position: int) -> ValueRange | None:
    """The range of an input, or None where it is left out."""
    return inputs[position] if position < len(inputs) else None


def shape_of(signature: Signature, position: int) -> Shape | None:
    """The shape of an input, or None where it is unknown."""
    operand = signature.inputs[position] if position < len(signature.inputs) else None
    return None if operand is None else operand.shape


def of_ranges(function: Callable[..., ValueRange], count: int = 1) -> Rule:
    """A rule that asks for nothing but the ranges of the first inputs."""

    def rule(_: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        return (function(*(r or UNKNOWN for r in inputs[:count])),)

    return rule
