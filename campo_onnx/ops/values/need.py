"""Accuracy that a value is needed with: asked by an operator of its inputs, or passed on to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from onnx import TensorProto

from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.ops.values.rule import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """An error that may be made of a value `v`: ``max(relative * |v|, absolute)``; none where both are 0."""

    relative: float = 0.0
    absolute: float = 0.0
    # Whether it is an index or a coordinate. What sets its own accuracy, such as a product of matrices, has
    # to compute such a value in FP32 as well.
    is_place: bool = False

    def allowed(self, magnitude: float) -> float:
        """The error that may be made of a value of some magnitude."""
        return max(self.relative * magnitude, self.absolute)

    def is_within(self, other: "Need") -> bool:
        """Whether whatever satisfies this satisfies the other."""
        is_as_strict = self.is_place or not other.is_place
        return is_as_strict and self.relative <= other.relative and self.absolute <= other.absolute


Needs: TypeAlias = Mapping[int, Need]
"""By position of the input."""

AskRule: TypeAlias = Callable[[Signature, Ranges, float], Needs]
"""Accuracy asked of inputs, for results that are right to a relative error (the number)."""

PassRule: TypeAlias = Callable[[Signature, Ranges, ValueRange, Need], Needs]
"""Accuracy that an operator has to ask of its inputs where its result is needed so exactly."""

FRACTIONS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL}
)
"""Types of what counts nothing: floating-point numbers and truth values."""

EXACT = Need()
NOTHING: Needs = {}


def magnitude_of(values: ValueRange | None) -> float:
    """The factor that a constant is; 1 of what varies, whose size no constant tells."""
    return 1.0 if values is None or values.varies else values.magnitude or 1.0


def least_magnitude(values: ValueRange) -> float:
    """Proved distance of the values from zero."""
    return max(values.lowest, -values.highest, 0.0)


def have_one_sign(inputs: Ranges) -> bool:
    """Whether no input may be negative, or none positive, so that a sum of them cannot cancel."""
    present = [values for values in inputs if values is not None]
    return all(r.lowest >= 0.0 for r in present) or all(r.highest <= 0.0 for r in present)


def after_cancelling(need: Need, result: ValueRange) -> Need:
    """Accuracy asked of the terms of a sum that may cancel: the error in them is one of the result."""
    return replace(need, relative=0.0, absolute=need.allowed(least_magnitude(result)))


def known_at(inputs: Ranges, position: int) -> ValueRange:
    """The range of an input; unknown where it is left out."""
    one = inputs[position] if position < len(inputs) else None
    return UNKNOWN if one is None else one
