"""A training step in two graphs: gradients, and the update of flat tensors if they are finite."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.size_ranges import ranges_of
from campo_onnx.runtime.api import LoadSettings, Tensor
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load, tensor, tensor_of
from campo_onnx.runtime.timing import Step
from campo_onnx.step import naming as step_naming
from campo_onnx.step.interface import StepInterface
from campo_onnx.training.flat_state import ROW, flat_layout, in_order
from campo_onnx.training.flat_update import FlatProgram, FlatUpdate
from campo_onnx.training.gradient_interface import GradientInterface
from campo_onnx.training.low_weights import LOW, MASTER, cast_model, with_low_weights
from campo_onnx.training.pool_places import with_compared_places
from campo_onnx.training.runner import Arrays, Outcome, Result, Tensors, TensorsBySize, refuse_another_batch
from campo_onnx.training.weight_order import kept_as_read
from campo_onnx.training.weight_update import WeightUpdate

GRAD_NORM = "grad_norm"
"""Metric of an update with clipping: the norm of all gradients before it."""

_FLOAT = int(TensorProto.FLOAT)


class FlatStep:
    """Runs a gradient graph on slices of flat tensors, and the update on the flat tensors themselves.

    Gradients of ``accumulate`` steps, a window, are averaged before an update. If a gradient of the
    window is not finite there is no update, and buffers (running statistics) go back to what they were
    before the window. Where most weights are read in FP16, all are cast at once before a window's first
    step, instead of one by one in each. Weights and optimizer state are updated in place: unlike
    :class:`~campo_onnx.training.opened.WholeStep` it keeps one copy of them.
    """

    def __init__(
        self,
        imported: Imported,
        interface: GradientInterface,
        update: WeightUpdate,
        machine: Machine,
        state: Mapping[str, NDArray[Any]],
        *,
        cuda_graph: bool,
    ) -> None:
        self._interface = interface
        self._accumulate = update.accumulate
        step = interface.step
        parameters = interface.parameters()
        if update.optimizer is None:  # others may ask for weights and gradients whose elements lie in order
            parameters = {name: output for name, output in parameters.items() if output is None}
        model, self._kept = kept_as_read(imported.model, imported.view, parameters)
        trained = {n: step_naming.parameter(n) for n in interface.gradients}
        orders = {
            n: self._kept[parameter].order for n, parameter in trained.items() if parameter in self._kept
        }
        self._layout = flat_layout(interface.shapes(), update.groups, orders)
        has_check = step_naming.GRADS_FINITE in step.metrics or step_naming.LOSS_SCALE not in step.feeds
        self._update = FlatUpdate(
            update, self._layout, machine, is_scaled=interface.is_scaled, checks_finite=not has_check
        )
        self._roles = self._update.roles()
        self._further = tensor((self._layout.rows * ROW,), _FLOAT, machine) if update.accumulate > 1 else None
        if not machine.is_gpu and not ranges_of(model):
            model = with_compared_places(replace(imported, model=model))
        model, self._low = with_low_weights(model, self._layout)
        self._low_weights: Tensor | None = None
        if self._low:
            self._low_weights = tensor((self._layout.rows * ROW,), int(TensorProto.FLOAT16), machine)
            self._cast = FlatProgram(cast_model(self._layout.rows), machine)
            self._cast.reads(MASTER, self._update.weights)
            self._cast.writes(LOW, self._low_weights)
        # The threads of one session would keep the cores from the other's: on two cores, BERT-large's small
        # variant took 47 ms a step with threads that spin, 16 with threads that do so within a run.
        settings = LoadSettings(captures=cuda_graph, must_stay=cuda_graph, spins=False)
        self._program = load(model, machine, folder=imported.folder, settings=settings)
        flat = {name_of(name) for name_of in self._roles for name in self._layout.slices}
        others = {n: value for n, value in state.items() if n not in flat and n != step_naming.STEP}
        self._frozen = {
            n: tensor_of(self._as_kept(n, value), machine)
            for n, value in others.items()
            if n not in step.next_value
        }
        # The state, what the window has made of it so far, and what the next step makes of that.
        copies = 3 if update.accumulate > 1 else 2
        self._buffers = [
            {n: tensor_of(value, machine) for n, value in others.items() if n in step.next_value}
            for _ in range(copies)
        ]
        self._by_size = TensorsBySize(machine)
        self._side = self._latest = 0  # copies of the buffers: the state, and the window's
        self._taken = 0  # steps of the window so far
        self._is_finite = True
        self.load(state)

    @property
    def is_within_window(self) -> bool:
        """Whether gradients are being accumulated."""
        return self._taken > 0

    def run(self, feeds: Mapping[str, NDArray[Any]], interface: StepInterface) -> Result:
        """Run one step; if the gradient graph fails, the step has not been taken."""
        self._update.refuse_torn()
        lr = float(feeds.get(step_naming.LEARNING_RATE, np.float32(0)))
        scale = float(feeds.get(step_naming.LOSS_SCALE, np.float32(1)))
        read = (spec for name, spec in interface.feeds.items() if name != step_naming.LEARNING_RATE)
        tensors = self._by_size.at(read, interface.metrics.values())
        for name, value in feeds.items():
            if name in tensors.feeds:
                tensors.feeds[name].write(value)
        metrics = self._differentiate(tensors)
        if self._taken < self._accumulate:
            return Result(metrics=metrics, outcome=Outcome.ACCUMULATED)
        self._taken = 0
        inverse = 1 / (self._accumulate * (scale if self._interface.is_scaled else 1.0))
        checked = self._update.check(inverse)
        if checked.norm is not None:
            metrics[GRAD_NORM] = checked.norm
        if not (self._is_finite and checked.finite):
            return Result(metrics=metrics, outcome=Outcome.SKIPPED)
        self._update.run(lr, checked.inverse)
        self._side = self._latest
        return Result(metrics=metrics, outcome=Outcome.UPDATED)

    def shared(self) -> Arrays:
        """Give weights and gradients where they lie, by name, without a copy."""
        arrays: Arrays = {}
        roles = {step_naming.parameter: self._update.weights, step_naming.gradient: self._update.gradients}
        for name_of, buffer in roles.items():
            flat = buffer.shared()
            if flat is None:
                raise UsageError(
                    "memory of a GPU cannot be shared as NumPy arrays",
                    remedy="Give the update an optimizer of campo_onnx.export.optimizers.",
                )
            arrays |= {name_of(name): part for name, part in self._layout.unpacked(flat).items()}
        return arrays

    def state(self) -> Arrays:
        """Copy the state from the device, by input name; within a window, that before it."""
        self._update.refuse_torn()
        arrays: Arrays = {}
        for name_of, buffer in self._roles.items():
            parts = self._layout.unpacked(buffer.read())
            arrays |= {name_of(name): np.asarray(part, order="C") for name, part in parts.items()}
        for name, value in (self._frozen | self._buffers[self._side]).items():
            layout = self._kept.get(name)
            array = value.read()
            arrays[name] = array if layout is None else np.asarray(in_order(array, layout.order), order="C")
        if step_naming.STEP in self._interface.step.state:
            arrays[step_naming.STEP] = np.asarray(self._update.count, np.int64)
        return {name: arrays[name] for name in self._interface.step.state}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put another state in place; a window that was begun is forgotten."""
        self._taken = 0
        with self._update.changing(int(state.get(step_naming.STEP, np.int64(0)))):
            for name_of, buffer in self._roles.items():
                buffer.write(self._layout.packed({n: state[name_of(n)] for n in self._layout.slices}))
            for name, value in (self._frozen | self._buffers[self._side]).items():
                value.write(self._as_kept(name, state[name]))

    def _as_kept(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        layout = self._kept.get(name)
        return np.asarray(value if layout is None else value.transpose(layout.order), order="C")

    def _differentiate(self, tensors: Tensors) -> Arrays:
        """Compute the gradients of one step and add them to the window's."""
        is_first = self._taken == 0
        if is_first and self._low_weights is not None:
            self._cast.run()
        source = self._side if is_first else self._latest
        target = next(i for i in range(len(self._buffers)) if i not in (self._side, source))
        key = (source, target, is_first)
        if key not in tensors.steps:
            tensors.steps[key] = self._bound(tensors, *key)
        tensors.steps[key]()
        metrics = {name: value.read() for name, value in tensors.metrics.items()}
        refuse_another_batch(metrics)
        finite = bool(metrics.pop(step_naming.GRADS_FINITE, True))
        if not is_first and self._further is not None:
            try:
                self._update.add(self._further)
            except ModelError:
                self._taken = 0  # the sum is lost, and with it the window
                raise
        self._is_finite = finite and (is_first or self._is_finite)
        self._latest, self._taken = target, self._taken + 1
        return metrics

    def _bound(self, tensors: Tensors, source: int, target: int, is_first: bool) -> Step:
        step, further = self._interface.step, self._further
        gradients = self._update.gradients if is_first or further is None else further
        reads = self._frozen | self._buffers[source] | tensors.feeds
        writes = {step.next_value[name]: value for name, value in self._buffers[target].items()}
        writes |= tensors.metrics
        for name, output in self._interface.gradients.items():
            place, weight = self._layout.slices[name], step_naming.parameter(name)
            shape = self._kept[weight].gradient_shape if weight in self._kept else place.shape
            reads[weight] = self._update.weights.slice(place.first, place.stored)
            writes[output] = gradients.slice(place.first, shape)
            if name in self._low and self._low_weights is not None:
                reads[self._low[name]] = self._low_weights.slice(place.first, place.stored)
        return self._program.bound(reads, writes)
