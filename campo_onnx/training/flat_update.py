"""The update of flat tensors: their memory, and the small graphs that run on it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.builder.target import Target as ExportTarget
from campo_onnx.builder.target import target_here
from campo_onnx.errors import ModelError
from campo_onnx.export.optimizers import LAMB, Optimizer
from campo_onnx.export.update_equations import update_numbers
from campo_onnx.runtime.api import LoadSettings, Program, Tensor
from campo_onnx.runtime.machine import CPU, CUDA, Machine
from campo_onnx.runtime.registry import load, runtime_called, tensor
from campo_onnx.runtime.timing import Step
from campo_onnx.step import naming as step_naming
from campo_onnx.training import updates
from campo_onnx.training.flat_state import ROW, FlatLayout, Segment
from campo_onnx.training.weight_update import WeightUpdate


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

    def feed(self, numbers: Mapping[str, float]) -> None:
        """Set numbers by name of input, and bind the tensors: what may fail before anything is written."""
        for name, number in numbers.items():
            self._reads[name].write(np.asarray(number, np.float32))
        _ = self._step

    def run(self) -> None:
        """Run it on the tensors and numbers as they are."""
        self._step()

    def read(self, name: str) -> NDArray[Any] | None:
        """Copy a number from the processor; None for one that the graph does not compute."""
        return self._results[name].read() if name in self._results else None


ROWS_A_RUN: Mapping[str, int] = MappingProxyType({CPU: 512, CUDA: 65_536})
"""Rows of one run of an update.

On a CPU what its caches hold, 2 MiB a tensor: AdamW of 25 million numbers took 62 ms on one thread in such
runs, and 112 ms in one. On a GPU what bounds the memory for intermediate results, 256 MiB a tensor.
"""

_FLOAT = int(TensorProto.FLOAT)
_SMALL = 2.0**-96
"""Makes gradients small enough whose squares overflow FP32 when they are added."""

_LEAST_FACTOR = 2.0**-40
"""Second moments take the square of what gradients are multiplied by, which FP32 has to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of checking all gradients together."""

    finite: bool  # whether they are finite, as far as that was asked
    norm: NDArray[Any] | None  # their norm; only with clipping
    inverse: float  # the factor that unscales and averages them, after this


class FlatUpdate:
    """Flat weights, gradients and optimizer state, and what updates them in place."""

    def __init__(
        self,
        update: WeightUpdate,
        layout: FlatLayout,
        machine: Machine,
        *,
        is_scaled: bool,
        checks_finite: bool,
    ) -> None:
        self.count = 0
        self._update, self._layout, self._machine = update, layout, machine
        self._is_torn = False
        may_differ = runtime_called(machine.runtime).capabilities.own_operators
        self._target: ExportTarget = target_here(machine.provider, machine.ort) if may_differ else "standard"
        self.weights, self.gradients = self._flat(), self._flat()
        self._slots = {slot: self._flat() for slot in update.slots}
        self._average = None if update.average_decay is None else self._flat()
        is_clipped = update.clip_norm is not None
        self._feeds_scale = not is_clipped and (is_scaled or update.accumulate > 1)
        self._checks = is_clipped or checks_finite
        if self._checks:
            model = updates.check_model(layout.rows, clip_norm=update.clip_norm, finite=checks_finite)
            self._check = FlatProgram(model, machine)
            self._check.reads(updates.GRADIENT, self.gradients)
        scaled = is_clipped or self._feeds_scale
        self._programs = [
            (segment, program)
            for segment in layout.segments
            if update.optimizer is not None or scaled
            for program in self._programs_of(segment, scaled=scaled)
        ]
        self._sum: FlatProgram | None = None
        if self._average is not None and update.average_decay is not None:
            self._averaging = FlatProgram(
                updates.averaging_model(layout.rows, update.average_decay, self._target), machine
            )
            self._averaging.reads(updates.PARAMETER, self.weights)
            self._averaging.reads(updates.AVERAGE, self._average)
            self._averaging.writes(updates.new(updates.AVERAGE), self._average)

    def roles(self) -> dict[Callable[[str], str], Tensor]:
        """Flat state, by what names a parameter's part of it."""
        roles: dict[Callable[[str], str], Tensor] = {step_naming.parameter: self.weights}
        roles |= {partial(step_naming.state, slot): buffer for slot, buffer in self._slots.items()}
        return roles | ({} if self._average is None else {step_naming.average: self._average})

    @contextmanager
    def changing(self, count: int) -> Iterator[None]:
        """Let the caller change the tensors to what they are after `count` updates.

        If it fails, they are refused from then on.
        """
        self._is_torn = True
        yield
        self.count, self._is_torn = count, False

    def refuse_torn(self) -> None:
        """Refuse to go on with weights of which an update was cut short."""
        if self._is_torn:
            raise ModelError(
                "the weights are a mix of two updates",
                why="the last one failed",
                remedy="Restore a checkpoint.",
            )

    def add(self, further: Tensor) -> None:
        """Add further gradients to the gradients."""
        if self._sum is None:
            self._sum = FlatProgram(updates.accumulation_model(self._layout.rows), self._machine)
            self._sum.reads(updates.GRADIENT, self.gradients)
            self._sum.reads(updates.FURTHER, further)
            self._sum.writes(updates.new(updates.GRADIENT), self.gradients)
        self._sum.run()

    def check(self, inverse: float) -> Checked:
        """Look at all gradients together; `inverse` is the factor that unscales and averages them.

        Where their squares, or that of the factor, leave FP32, they are multiplied by a part of it here: by a
        power of two, which rounds nothing.
        """
        checked = self._checked(inverse)
        if checked.finite and checked.norm is not None and np.isinf(checked.norm):
            checked = self._multiplied(checked, _SMALL)
        factor = checked.inverse * self._share(checked.norm)
        if checked.finite and factor > 0 and not _LEAST_FACTOR <= factor <= 1 / _LEAST_FACTOR:
            checked = self._multiplied(checked, 2.0 ** math.floor(math.log2(factor)))
        return checked

    def _checked(self, inverse: float) -> Checked:
        if not self._checks:
            return Checked(finite=True, norm=None, inverse=inverse)
        if self._update.clip_norm is not None:
            self._check.feed({updates.INVERSE: inverse})
        self._check.run()
        finite, norm = self._check.read(updates.FINITE), self._check.read(updates.NORM)
        return Checked(finite=finite is None or bool(finite), norm=norm, inverse=inverse)

    def _share(self, norm: NDArray[Any] | None) -> float:
        """Say how much clipping leaves of the gradients."""
        clip = self._update.clip_norm
        return 1.0 if clip is None or norm is None or not norm > clip else clip / float(norm)

    def _multiplied(self, checked: Checked, factor: float) -> Checked:
        """Multiply all gradients, and look at them again."""
        program = FlatProgram(updates.scaling_model(self._layout.rows), self._machine)
        program.reads(updates.GRADIENT, self.gradients)
        program.writes(updates.new(updates.GRADIENT), self.gradients)
        program.feed({updates.GRAD_SCALE: factor})
        program.run()
        return self._checked(checked.inverse / factor)

    def run(self, lr: float, inverse: float) -> None:
        """Update weights and optimizer state in place.

        ModelError says that it fails; the weights are then lost.
        """
        scale = {updates.GRAD_SCALE: inverse} if self._feeds_scale else {}
        for segment, program in self._programs:
            optimizer, group = self._update.optimizer_of(segment.group), segment.group
            rate = lr * (group.lr_scale if group is not None else 1.0)
            numbers = {} if optimizer is None else update_numbers(optimizer, rate, self.count + 1)
            program.feed({**numbers, **scale})
        with self.changing(self.count + 1):
            for _, program in self._programs:
                program.run()
            if self._average is not None:
                self._averaging.run()

    def _flat(self) -> Tensor:
        return tensor((self._layout.rows * ROW,), _FLOAT, self._machine)

    def _programs_of(self, segment: Segment, *, scaled: bool) -> Iterator[FlatProgram]:
        """Write the update of a segment as runs of as many rows as suit the machine."""
        optimizer = self._update.optimizer_of(segment.group)
        most = segment.rows if isinstance(optimizer, LAMB) else ROWS_A_RUN[self._machine.provider]
        loaded: dict[int, FlatProgram] = {}
        for done in range(0, segment.rows, most):
            rows = min(most, segment.rows - done)
            program = self._program(optimizer, segment, rows, scaled=scaled, loaded=loaded.get(rows))
            self._bind(program, optimizer, (segment.first_row + done) * ROW)
            loaded.setdefault(rows, program)
            yield program

    def _program(
        self,
        optimizer: Optimizer | None,
        segment: Segment,
        rows: int,
        *,
        scaled: bool,
        loaded: FlatProgram | None,
    ) -> FlatProgram:
        if optimizer is None:
            return FlatProgram(updates.scaling_model(rows), self._machine, loaded=loaded)
        numbers = self._layout.tensor_of_row(segment) if isinstance(optimizer, LAMB) else None
        model = updates.update_model(
            optimizer, rows, scaled=scaled, tensor_of_row=numbers, target=self._target
        )
        return FlatProgram(model, self._machine, loaded=loaded)

    def _bind(self, program: FlatProgram, optimizer: Optimizer | None, first: int) -> None:
        program.reads(updates.GRADIENT, self.gradients, first)
        if optimizer is None:
            program.writes(updates.new(updates.GRADIENT), self.gradients, first)
        else:
            for role, buffer in {updates.PARAMETER: self.weights, **self._slots}.items():
                program.reads(role, buffer, first)
                program.writes(updates.new(role), buffer, first)
        if self._update.clip_norm is not None:
            program.shares(updates.GRAD_SCALE, self._check.result(updates.GRAD_SCALE))
