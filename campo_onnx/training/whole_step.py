"""A training step whose graph holds the update: state lies on the device in two copies that swap."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from campo_onnx.ir.importer import Imported
from campo_onnx.runtime.onnxruntime.providers import Machine
from campo_onnx.runtime.onnxruntime.run import empty_on_device, from_device, on_device, run_bound
from campo_onnx.runtime.onnxruntime.sessions import open_session
from campo_onnx.step.interface import StepInterface, TensorSpec
from campo_onnx.step.naming import GRADS_FINITE
from campo_onnx.training.pool_places import with_compared_places
from campo_onnx.training.runner import Arrays, Outcome, Ran


class WholeStep:
    """Runs a graph that reads the state and writes the next one.

    A step reads one copy and writes the other, then they swap. A step that overflows or fails does
    not swap, so the state is untouched whatever it wrote.

    Parameters
    ----------
    imported, interface
        The graph, and its inputs and outputs told apart.
    machine
        Where to run it.
    state
        First value of every state input.
    cuda_graph
        Whether CUDA captures the step once and replays it.
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
        self._interface, self._machine, self._cuda_graph = interface, machine, cuda_graph
        model = imported.model
        if machine.provider == "cpu":
            model = with_compared_places(model, imported.view)
        self._session = open_session(
            model,
            machine,
            folder=imported.folder,
            cuda_graph=cuda_graph,
            strict=cuda_graph,
            spins=False,
        )
        self._side = 0  # which of its two copies is the state
        self._state = {name: self._two_copies(name, value) for name, value in state.items()}
        self._feeds = {name: self._empty(spec) for name, spec in interface.feeds.items()}
        self._metrics = {name: self._empty(spec) for name, spec in interface.metrics.items()}
        self._bindings = (self._bound(0), self._bound(1))

    @property
    def is_within_window(self) -> bool:
        """Never: every step updates."""
        return False

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Ran:
        """Run one step; a failure leaves the state as it was."""
        for name, value in feeds.items():
            self._feeds[name].update_inplace(value)
        # A captured graph keeps its addresses, and the two sides have different ones.
        run_bound(self._session, self._bindings[self._side], self._side + 1 if self._cuda_graph else None)
        metrics = {name: from_device(value) for name, value in self._metrics.items()}
        if not metrics.pop(GRADS_FINITE, True):
            return Ran(metrics=metrics, outcome=Outcome.SKIPPED)
        self._side = 1 - self._side
        return Ran(metrics=metrics, outcome=Outcome.UPDATED)

    def state(self) -> Arrays:
        """Copy the state from the device, by input name."""
        return {name: from_device(copies[self._side]) for name, copies in self._state.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put another state in place."""
        for name, value in state.items():
            self._state[name][self._side].update_inplace(value)

    def _two_copies(self, name: str, value: NDArray[Any]) -> tuple[Any, Any]:
        first = on_device(value, self._machine)
        is_frozen = name not in self._interface.next_value
        return first, first if is_frozen else self._empty(self._interface.state[name])

    def _empty(self, spec: TensorSpec) -> Any:
        return empty_on_device(spec.shape, spec.dtype, self._machine)

    def _bound(self, side: int) -> Any:
        binding = self._session.io_binding()
        for name, copies in self._state.items():
            binding.bind_ortvalue_input(name, copies[side])
        for name, value in self._feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name, output in self._interface.next_value.items():
            binding.bind_ortvalue_output(output, self._state[name][1 - side])
        for name, value in self._metrics.items():
            binding.bind_ortvalue_output(name, value)
        return binding
