"""Loss scaling: keeping small gradients out of FP16's zero.

The loss is multiplied by a scale before the backward pass, and gradients are divided by it in FP32
before the update. The dynamic scale is NVIDIA's recipe: start high; when a gradient overflows, skip
the update and halve the scale; after some time without overflow, double it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.files.codec import DecodeError, from_plain, to_plain

LARGEST = 2.0**24
"""Initial dynamic scale, and, unless told otherwise, its upper limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaler:
    """A loss scale and the rule by which it changes: a value, which :meth:`updated` steps forward.

    Parameters
    ----------
    scale
        The scale of the next step.
    backoff
        Factor on the scale when a step overflowed; 1 for a static scale.
    growth
        Factor on the scale after `growth_interval` steps in a row without overflow; 1 for a
        static scale.
    growth_interval
        Steps.
    smallest, largest
        Limits of the scale.
    clean_steps
        Steps without overflow since the scale changed last.

    Raises
    ------
    UsageError
        If the scale, a factor or a limit is out of range.

    Examples
    --------
    >>> LossScaler().updated(finite=False).scale == 2.0**23
    True
    >>> LossScaler(scale=8.0, growth_interval=1).updated(finite=True).scale
    16.0
    """

    scale: float = LARGEST
    backoff: float = 0.5
    growth: float = 2.0
    growth_interval: int = 2000
    smallest: float = 1.0
    largest: float = LARGEST
    clean_steps: int = 0

    def __post_init__(self) -> None:
        _require(0 < self.backoff <= 1, f"the back-off factor is {self.backoff}", "in (0, 1]")
        _require(1 <= self.growth < math.inf, f"the growth factor is {self.growth}", "1 or more")
        _require(self.growth_interval >= 1, f"the growth interval is {self.growth_interval}", "1 or more")
        _require(self.clean_steps >= 0, f"the count of clean steps is {self.clean_steps}", "0 or more")
        _require(
            0 < self.smallest <= self.scale <= self.largest < math.inf,
            f"the loss scale is {self.scale:g}",
            f"between {self.smallest:g} and {self.largest:g}, and those positive and finite",
        )

    @classmethod
    def static(cls, scale: float) -> "LossScaler":
        """Make a scale that never changes; steps that overflow are skipped all the same."""
        return cls(scale=scale, backoff=1.0, growth=1.0, smallest=scale, largest=scale)

    def updated(self, *, finite: bool) -> "LossScaler":
        """Step the scale forward."""
        if not finite:
            return replace(self, scale=max(self.scale * self.backoff, self.smallest), clean_steps=0)
        if self.clean_steps + 1 < self.growth_interval:
            return replace(self, clean_steps=self.clean_steps + 1)
        return replace(self, scale=min(self.scale * self.growth, self.largest), clean_steps=0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for a checkpoint."""
        state: dict[str, Any] = to_plain(self)
        return state

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "LossScaler":
        """Make the scaler that :meth:`state_dict` described."""
        try:
            return from_plain(state, cls)
        except DecodeError as error:
            raise UsageError(
                "this is not a loss scaler's state", why=str(error), remedy="Pass what state_dict() returned."
            ) from None


def _require(holds: bool, what: str, range_: str) -> None:
    if not holds:
        raise UsageError(what, remedy=f"It must be {range_}.")
