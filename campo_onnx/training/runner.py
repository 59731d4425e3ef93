"""Interface of whatever runs the steps of a training session."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


class Outcome(Enum):
    """Effect of a step on the weights."""

    UPDATED = "updated"
    ACCUMULATED = "accumulated"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A step that ran: its metrics, and what it did to the weights."""

    metrics: Arrays
    outcome: Outcome


class Runner(Protocol):
    """Runs steps and keeps the state."""

    @property
    def is_within_window(self) -> bool:
        """Whether gradients are being accumulated, so that the state is not that of the last step."""

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Ran:
        """Run one step on a value for every feed."""

    def state(self) -> Arrays:
        """Copy the state from the device, by input name."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put another state in place; it has the names, types and shapes of this one."""
