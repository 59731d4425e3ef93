"""A small graph over flat tensors, loaded once and bound to where its tensors and numbers lie."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.runtime.api import LoadSettings, Program, Tensor
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load, tensor
from campo_onnx.runtime.timing import Step


class FlatProgram:
    """Runs a graph whose inputs and outputs are flat tensors, in slices of others, and single numbers.

    Every input and output of the model without dimensions is a number. `loaded` is the same graph, loaded
    before and bound to other places.
    """

    def __init__(
        self, model: onnx.ModelProto, machine: Machine, *, loaded: "FlatProgram | None" = None
    ) -> None:
        settings = LoadSettings(must_stay=False, spins=False)
        self._program: Program = (
            load(model, machine, settings=settings) if loaded is None else loaded._program
        )
        types = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
        self._shapes = {name: [d.dim_value for d in t.shape.dim] for name, t in types.items()}
        self._reads, self._writes = (
            {
                value.name: tensor((), types[value.name].elem_type, machine)
                for value in values
                if not self._shapes[value.name]
            }
            for values in (model.graph.input, model.graph.output)
        )
        self._results = dict(self._writes)

    def reads(self, name: str, flat: Tensor, first: int = 0) -> None:
        """Let an input read a flat tensor from an element on."""
        self._reads[name] = flat.slice(first, self._shapes[name])

    def writes(self, name: str, flat: Tensor, first: int = 0) -> None:
        """Let an output write a flat tensor from an element on."""
        self._writes[name] = flat.slice(first, self._shapes[name])

    def shares(self, name: str, number: Tensor) -> None:
        """Let an input read a number that another program computes."""
        self._reads[name] = number

    def result(self, name: str) -> Tensor:
        """Give the place of a number that the graph computes."""
        return self._results[name]

    @cached_property
    def _step(self) -> Step:
        return self._program.bound(self._reads, self._writes)

    def run(self, numbers: Mapping[str, float]) -> None:
        """Run it on the tensors as they are, and on numbers by name of input."""
        for name, number in numbers.items():
            self._reads[name].write(np.asarray(number, np.float32))
        self._step()

    def read(self, name: str) -> NDArray[Any] | None:
        """Copy a number from the processor; None for one that the graph does not compute."""
        return self._results[name].read() if name in self._results else None
