"""A training step whose graph holds the update: state lies on the device in two copies that swap."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.size_ranges import ranges_of
from campo_onnx.runtime.api import LoadSettings, Tensor
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load, tensor, tensor_of
from campo_onnx.runtime.timing import Step
from campo_onnx.step.interface import StepInterface
from campo_onnx.step.naming import GRADS_FINITE
from campo_onnx.training.pool_places import with_compared_places
from campo_onnx.training.runner import Arrays, Outcome, Result, Tensors, TensorsBySize, refuse_another_batch


class WholeStep:
    """Runs a graph that reads the state and writes the next one.

    A step reads one copy and writes the other, then they swap. A step that overflows or fails does
    not swap, so the state is untouched whatever it wrote.
    """

    def __init__(
        self,
        imported: Imported,
        interface: StepInterface,
        machine: Machine,
        state: Mapping[str, NDArray[Any]],
        *,
        cuda_graph: bool,
    ) -> None:
        self._interface, self._machine = interface, machine
        model = imported.model
        if not machine.is_gpu and not ranges_of(model):
            model = with_compared_places(imported)
        settings = LoadSettings(captures=cuda_graph, must_stay=cuda_graph, spins=False)
        self._program = load(model, machine, folder=imported.folder, settings=settings)
        self._state = {name: self._two_copies(name, value) for name, value in state.items()}
        self._by_size = TensorsBySize(machine)
        for self._side in (1, 0):  # which of its two copies is the state
            self._step(interface)

    @property
    def is_within_window(self) -> bool:
        """Never: every step updates."""
        return False

    def run(self, feeds: Mapping[str, NDArray[Any]], interface: StepInterface) -> Result:
        """Run one step; a failure leaves the state as it was."""
        step, tensors = self._step(interface)
        for name, value in feeds.items():
            tensors.feeds[name].write(value)
        step()
        metrics = {name: value.read() for name, value in tensors.metrics.items()}
        refuse_another_batch(metrics)
        if not metrics.pop(GRADS_FINITE, True):
            return Result(metrics=metrics, outcome=Outcome.SKIPPED)
        self._side = 1 - self._side
        return Result(metrics=metrics, outcome=Outcome.UPDATED)

    def state(self) -> Arrays:
        """Copy the state from the device, by input name."""
        return {name: copies[self._side].read() for name, copies in self._state.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put another state in place."""
        for name, value in state.items():
            self._state[name][self._side].write(value)

    def _two_copies(self, name: str, value: NDArray[Any]) -> tuple[Tensor, Tensor]:
        first = tensor_of(value, self._machine)
        is_frozen = name not in self._interface.next_value
        spec = self._interface.state[name]
        return first, first if is_frozen else tensor(spec.shape, spec.dtype, self._machine)

    def _step(self, interface: StepInterface) -> tuple[Step, Tensors]:
        tensors = self._by_size.at(interface.feeds.values(), interface.metrics.values())
        if self._side not in tensors.steps:
            tensors.steps[self._side] = self._bound(tensors, self._side)
        return tensors.steps[self._side], tensors

    def _bound(self, tensors: Tensors, side: int) -> Step:
        state, outputs = self._state, self._interface.next_value
        reads = {name: copies[side] for name, copies in state.items()} | tensors.feeds
        writes = {output: state[name][1 - side] for name, output in outputs.items()} | tensors.metrics
        return self._program.bound(reads, writes)
