"""A small graph over flat tensors, loaded once and bound to where its tensors and numbers lie."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.runtime.onnxruntime.buffers import FlatBuffer
from campo_onnx.runtime.onnxruntime.providers import Machine
from campo_onnx.runtime.onnxruntime.run import empty_on_device, from_device, on_device, run_bound
from campo_onnx.runtime.onnxruntime.sessions import open_session


class Program:
    """Runs a graph whose inputs and outputs are flat tensors, in slices of buffers, and single numbers.

    Parameters
    ----------
    model
        The graph; every input and output without dimensions is a number.
    machine
        Where to run it.
    loaded
        The same graph, loaded before and bound to other places.
    """

    def __init__(self, model: onnx.ModelProto, machine: Machine, *, loaded: "Program | None" = None) -> None:
        self._session: Any = (
            open_session(model, machine, strict=False, spins=False) if loaded is None else loaded._session
        )
        self._binding = self._session.io_binding()
        tensors = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
        self._shapes = {name: [d.dim_value for d in t.shape.dim] for name, t in tensors.items()}
        self._numbers: dict[str, Any] = {}
        for value in model.graph.input:
            if not self._shapes[value.name]:
                self.shares(value.name, on_device(np.zeros((), np.float32), machine))
        self._results: dict[str, Any] = {}
        for value in model.graph.output:
            if not self._shapes[value.name]:
                self._results[value.name] = empty_on_device([], tensors[value.name].elem_type, machine)
                self._binding.bind_ortvalue_output(value.name, self._results[value.name])

    def reads(self, name: str, buffer: FlatBuffer, first: int = 0) -> None:
        """Let an input read a buffer from an element on."""
        buffer.bind_input(self._binding, name, self._shapes[name], first)

    def writes(self, name: str, buffer: FlatBuffer, first: int = 0) -> None:
        """Let an output write a buffer from an element on."""
        buffer.bind_output(self._binding, name, self._shapes[name], first)

    def shares(self, name: str, number: Any) -> None:
        """Let an input read a number that lies on the device already."""
        self._numbers[name] = number
        self._binding.bind_ortvalue_input(name, number)

    def result(self, name: str) -> Any:
        """Give the place of a number that the graph computes."""
        return self._results[name]

    def run(self, numbers: Mapping[str, float]) -> None:
        """Run it on the tensors as they are, and on numbers by name of input.

        Raises
        ------
        ModelError
            If a node fails.
        """
        for name, number in numbers.items():
            self._numbers[name].update_inplace(np.asarray(number, np.float32))
        run_bound(self._session, self._binding)

    def read(self, name: str) -> NDArray[Any] | None:
        """Copy a number from the device; None for one that the graph does not compute."""
        return from_device(self._results[name]) if name in self._results else None
