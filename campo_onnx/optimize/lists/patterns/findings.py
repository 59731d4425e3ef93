"""The findings of a pattern rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.op_class import OpClass


class Finding(StrEnum):
    """The part that a node plays in a pattern, in the words of reports."""

    PARAMETER_SUM = "sums the gradient of a bias or scale"
    NO_SUM = "sums over no axis"
    STATISTIC = "a statistic of a normalization"
    SUM_OF_SQUARES = "sums squares in a normalization"
    SQUARES = "squares in a normalization"
    SOFTMAX_EXP = "Exp inside a softmax, bounded by 1"
    SOFTMAX_SUM = "a row's sum in the gradient of a softmax"
    GELU_EXP = "Exp(-x * x) inside GELU's gradient, bounded"
    GELU_POWER = "a negative power of a square inside GELU's gradient, bounded"
    MAX_POOL_GRADIENT = "scatters the gradient of a max pooling"
    RANDOM = "draws the same random numbers as in FP32"
    DRAWN_DECISION = "decides by the same draws as in FP32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Classes a rule gives to nodes, and readings that carry no unsafety."""

    # New class and what the node is (a Finding; rules of others have an enum of their own), by node name.
    classes: Mapping[str, tuple[OpClass, StrEnum]] = field(default_factory=dict)
    contained: frozenset[Use] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", MappingProxyType(dict(self.classes)))
