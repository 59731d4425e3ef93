"""Optimizers that can be written into a training step; they compute what ``torch.optim`` computes.

The learning rate is an input of the graph, so that it can be scheduled; the rest is constant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from campo_onnx.errors import UsageError

_BELOW: Mapping[str, float] = MappingProxyType(
    {"beta1": 1.0, "beta2": 1.0, "eps": math.inf, "momentum": math.inf, "weight_decay": math.inf}
)
"""Exclusive upper bound of each setting; none may be negative."""


class _Settings:
    __slots__ = ()

    def __post_init__(self) -> None:
        """Refuse settings that torch refuses, or that leave no finite weights."""
        for name, limit in _BELOW.items():
            number = getattr(self, name, 0.0)
            if not 0 <= number < limit:
                bound = f"and below {limit:g}" if limit < math.inf else "and finite"
                raise UsageError(f"{name} is {number:g}", remedy=f"It must be 0 or more, {bound}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments(_Settings):
    slots: ClassVar[tuple[str, ...]] = ("m", "v")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(_Settings):
    """Gradient descent.

    Raises UsageError if a number is out of range.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    weight_decay: float = 0.0  # added to the gradient, times the parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(_Settings):
    """Gradient descent with momentum."""

    slots: ClassVar[tuple[str, ...]] = ("mom",)
    momentum: float = 0.9  # share of the last update direction that is kept
    nesterov: bool = False  # whether to look ahead along it
    weight_decay: float = 0.0  # added to the gradient, times the parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(_Moments):
    """Adam.

    `beta1` and `beta2`: decay of the first and second moment.
    `eps`: added to the root of the second moment.
    `weight_decay`: added to the gradient, times the parameter.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay: the parameter itself shrinks by ``lr * weight_decay``."""

    weight_decay: float = 0.01  # rate of the shrinking


@dataclass(frozen=True, slots=True, kw_only=True)
class LAMB(_Moments):
    """Adam's direction, each tensor's step as long as the tensor itself times the learning rate."""

    eps: float = 1e-6
    weight_decay: float = 0.01  # added to the direction, times the parameter


Optimizer: TypeAlias = SGD | Momentum | Adam | AdamW | LAMB

BY_NAME: Mapping[str, Optimizer] = MappingProxyType(
    {"sgd": SGD(), "momentum": Momentum(), "adam": Adam(), "adamw": AdamW(), "lamb": LAMB()}
)
"""Each optimizer with its usual settings."""


def counts_updates(optimizer: Optimizer) -> bool:
    """Whether the update depends on how many there were: Adam and its kin correct their moments by it."""
    return isinstance(optimizer, Adam | AdamW | LAMB)
