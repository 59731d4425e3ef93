"""Why a node has no low variant: every reason there is, with its sentence."""

from dataclasses import dataclass
from enum import Enum


class Refused(Enum):
    """A reason that keeps an operator, or one node of it, from going low.

    The value is the sentence, a template over the facts of a :class:`Refusal`.
    """

    NO_FP32 = "computes no FP32"
    NO_SCHEMA = "an operator that has no schema in ONNX"
    NO_VARIANT = "{op} has no {low} variant in this opset"
    NO_CAST = "Cast makes no {low} in opset {opset}"
    UNKNOWN_TYPE = "the type of {what} {position} is unknown or not a tensor"
    CONSTANT = "a constant"
    SHAPE_ONLY = "reads only the shape"
    GIVEN_CAST = "an existing change of precision"
    CONVERSION = "converts numbers that the low precision may not hold"
    STATED_TYPE = "states the type of its output"
    CONTROL_FLOW = "control flow: bodies and what they capture stay FP32"
    TRAINS_IN_FP32 = "BatchNormalization trains in FP32 only"
    FRAMEWORK = "an FP32 boundary to the framework"

    def of(self, **facts: str | int) -> "Refusal":
        """Refuse one node."""
        return Refusal(why=self, facts=tuple(facts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one node has no low variant.

    >>> str(Refused.NO_CAST.of(low="bf16", opset=9))
    'Cast makes no bf16 in opset 9'
    """

    why: Refused
    facts: tuple[tuple[str, str | int], ...] = ()

    def __str__(self) -> str:
        return self.why.value.format_map(dict(self.facts))
