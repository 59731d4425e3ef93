"""Interface of whatever runs the steps of a training session."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.runtime.api import Tensor
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import tensor
from campo_onnx.runtime.timing import Step
from campo_onnx.step import naming as step_naming
from campo_onnx.step.interface import StepInterface, TensorSpec

Arrays = dict[str, NDArray[Any]]

_MOST_SIZES = 32


class Outcome(Enum):
    """Effect of a step on the weights."""

    UPDATED = "updated"
    ACCUMULATED = "accumulated"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A step that ran: its metrics, and what it did to the weights."""

    metrics: Arrays
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Tensors of one size of batch, and what was bound to them."""

    feeds: dict[str, Tensor]
    metrics: dict[str, Tensor]
    steps: dict[Hashable, Step]  # By whatever tells them apart


class TensorsBySize:
    """Tensors for batches of every size: the latest sizes keep theirs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kept: OrderedDict[Hashable, Tensors] = OrderedDict()

    def at(self, feeds: Iterable[TensorSpec], metrics: Iterable[TensorSpec]) -> Tensors:
        """Give the tensors of some sizes."""
        read, written = tuple(feeds), tuple(metrics)
        key = tuple((spec.name, spec.shape) for spec in (*read, *written))
        if key not in self._kept:
            tensors = (
                {spec.name: tensor(spec.shape, spec.dtype, self._machine) for spec in specs}
                for specs in (read, written)
            )
            self._kept[key] = Tensors(feeds=next(tensors), metrics=next(tensors), steps={})
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_SIZES:
            self._kept.popitem(last=False)
        return self._kept[key]


def refuse_another_batch(metrics: Arrays) -> None:
    """Take out what says whether a batch is as the export assumed, and refuse one that is not.

    The step must not be counted then.
    """
    for name in [name for name in metrics if step_naming.assumed(name) is not None]:
        if not metrics.pop(name):
            raise UsageError(
                "the batch is not like the example that the step was exported with",
                why=step_naming.assumed(name) or "",
                remedy="Export another step for such batches, or compute that number outside of the step.",
            )


class Runner(Protocol):
    """Runs steps and keeps the state."""

    @property
    def is_within_window(self) -> bool:
        """Whether gradients are being accumulated, so that the state is not that of the last step."""

    def run(self, feeds: Mapping[str, NDArray[Any]], interface: StepInterface) -> Result:
        """Run one step on a value for every feed; the interface is that of their sizes."""

    def state(self) -> Arrays:
        """Copy the state from the device, by input name."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put another state in place; it has the names, types and shapes of this one."""
