"""Update of weights from gradients: the optimizer, its parameter groups, clipping, accumulation."""

import math
import re
from dataclasses import dataclass, replace

from campo_onnx.errors import UsageError
from campo_onnx.export.optimizers import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters with settings of their own, as ``torch.optim`` has them."""

    # regular expressions; a parameter whose name one of them is found in belongs to the group
    parameters: tuple[str, ...]
    lr_scale: float = 1.0  # factor on the learning rate; a schedule moves all groups together
    weight_decay: float | None = None  # instead of the optimizer's; None keeps that

    def __post_init__(self) -> None:
        if isinstance(self.parameters, str) or not self.parameters:
            raise UsageError(
                f"a parameter group of {self.parameters!r}",
                remedy="Give a tuple of regular expressions, such as (r'bias$',).",
            )
        for pattern in self.parameters:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise UsageError(
                    f"the pattern {pattern!r} of a parameter group cannot be read", why=str(error)
                ) from None
        for name, number in (("lr_scale", self.lr_scale), ("weight_decay", self.weight_decay)):
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise UsageError(f"{name} is {number:g}", remedy="It must be 0 or more, and finite.")

    def holds(self, name: str) -> bool:
        """Whether a parameter belongs to the group."""
        return any(re.search(pattern, name) for pattern in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """A session's update, for a graph that has none."""

    # which update, one of `campo_onnx.export.optimizers`. None leaves the update to the caller, who
    # changes what `campo_onnx.training.session.TrainingSession.shared` gives whenever a step's result
    # says `updated`: an optimizer of torch, say.
    optimizer: Optimizer | None
    # parameters with settings of their own; a parameter belongs to the first group that holds it
    groups: tuple[ParameterGroup, ...] = ()
    # the largest norm that all gradients may have together, as in `torch.nn.utils.clip_grad_norm_`; None does
    # not clip
    clip_norm: float | None = None
    accumulate: int = 1  # steps whose gradients are averaged for one update
    # share of a moving average of the weights that is kept at each update; None keeps none
    average_decay: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer is None and (self.groups or self.average_decay is not None):
            raise UsageError(
                "groups and averages belong to an optimizer",
                remedy="Leave them to whoever updates the weights.",
            )
        if not isinstance(self.optimizer, Optimizer | None):
            raise UsageError(
                f"{type(self.optimizer).__name__} is not an optimizer of campo_onnx.export.optimizers",
                remedy="Pass AdamW(weight_decay=0.01), say; torch's own optimizers do not fit here.",
            )
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise UsageError(f"clip_norm is {self.clip_norm:g}", remedy="It must be positive and finite.")
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise UsageError(
                f"accumulate is {self.accumulate}", remedy="It must be a whole number, 1 or more."
            )
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise UsageError(f"average_decay is {self.average_decay:g}", remedy="It must be in [0, 1).")

    @property
    def slots(self) -> tuple[str, ...]:
        """Kinds of optimizer state."""
        return () if self.optimizer is None else self.optimizer.slots

    def optimizer_of(self, group: ParameterGroup | None) -> Optimizer | None:
        """Give the optimizer as a group wants it."""
        if group is None or group.weight_decay is None or self.optimizer is None:
            return self.optimizer
        return replace(self.optimizer, weight_decay=group.weight_decay)
