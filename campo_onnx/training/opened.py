"""A training step, loaded by the runtime that is named, or by the fastest of this CPU as measured."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.files import cache_folder
from campo_onnx.files.codec import fingerprint
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.size_ranges import ranges_of, with_examples
from campo_onnx.ir.sizes.in_file import at
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.runtime.api import LoadSettings, Tensor
from campo_onnx.runtime.choice import keep_choice, kept_choice, needs_default, runtimes_on_cpu, times_us
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import CPU, DEFAULT, Machine
from campo_onnx.runtime.registry import AUTO, load, machine, processor_for, runtime_called, tensor, tensor_of
from campo_onnx.runtime.timing import Step
from campo_onnx.step.interface import StepInterface, step_interface
from campo_onnx.step.naming import GRADS_FINITE
from campo_onnx.training.flat_step import FlatStep
from campo_onnx.training.gradient_interface import gradient_interface
from campo_onnx.training.pool_places import with_compared_places
from campo_onnx.training.runner import (
    Arrays,
    Outcome,
    Result,
    Runner,
    Tensors,
    TensorsBySize,
    refuse_another_batch,
)
from campo_onnx.training.weight_update import WeightUpdate
from campo_onnx.version import VERSION, source_digest


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


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """A step that is loaded, with its first state."""

    imported: Imported
    interface: StepInterface
    runner: Runner  # runs its steps and keeps the state
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A step that is yet to be loaded.

    Fields are as of :class:`~campo_onnx.training.session.TrainingSession`.
    """

    imported: Imported
    state: Mapping[str, NDArray[Any]]
    update: WeightUpdate | None
    pairs: Mapping[str, str | None] | None
    dims: Mapping[str, int] | None
    cuda_graph: bool

    def opened(self, provider: str, threads: int, runtime: str) -> OpenStep:
        """Load the step by a runtime, or by the fastest under ``"auto"``.

        CampoError says that the runtime does not run it; of several, that ONNX Runtime does not and no other
        does.
        """
        processor = processor_for(provider, runtime)
        if self.cuda_graph and processor == CPU:
            raise UsageError("a CUDA graph cannot be captured on a CPU", remedy="Leave cuda_graph off.")
        places = [machine(processor, threads, name) for name in self._runtimes(processor, runtime)]
        if len(places) == 1:
            return self._on(places[0])
        folder, key = cache_folder() / "plans", self._key(places)
        if (chosen := kept_choice(folder, key)) in (by_name := {place.runtime: place for place in places}):
            with suppress(CampoError):  # it has changed since: the choice is made again
                return self._on(by_name[chosen])
        steps = {step.runtime: step for step in self._candidates(places)}
        if len(steps) == 1:
            return next(iter(steps.values()))
        try:
            step_us = times_us({name: _rehearsal(step) for name, step in steps.items()})
            chosen = min(step_us, key=step_us.__getitem__)
            keep_choice(folder, key, chosen, step_us)
        except CampoError as error:  # numbers that are made up need not be a batch
            _LOG.debug("no runtime is chosen by measuring", exc_info=error)
            chosen = DEFAULT
        steps.clear()
        # Loaded anew: random numbers of the graph begin where they do without a rehearsal.
        return self._on(by_name[chosen])

    def _key(self, places: Sequence[Machine]) -> str:
        rules = (VERSION, source_digest())
        return fingerprint((rules, self.imported.digest, self.update, self.pairs, places))

    def _runtimes(self, processor: str, runtime: str) -> Sequence[str]:
        if runtime != AUTO:
            return (runtime,)
        if processor != CPU or ranges_of(self.imported.model) or needs_default(self.imported.view):
            return (DEFAULT,)
        return [each.name for each in runtimes_on_cpu()]

    def _candidates(self, places: Sequence[Machine]) -> Iterator[OpenStep]:
        refusals: list[CampoError] = []
        for place in places:
            try:
                yield self._on(place)
            except CampoError as error:
                _LOG.debug("%s does not run the step", place.runtime, exc_info=error)
                refusals.append(error)
        if len(refusals) == len(places):
            raise refusals[0]

    def _on(self, here: Machine) -> OpenStep:
        imported, dims = self.imported, self.dims
        if ranges_of(imported.model) and not runtime_called(here.runtime).capabilities.takes_any_size:
            imported, dims = import_model(at(imported.model, with_examples(imported.model, dims or {}))), None
        imported = as_it_runs(imported, Place.on(here), dims)
        if self.cuda_graph and ranges_of(imported.model):
            raise UsageError("a CUDA graph is of one size", remedy="Leave cuda_graph off for this step.")
        runner: Runner
        captures = self.cuda_graph
        if self.update is None:
            interface = step_interface(imported.view, self.pairs, imported.constants)
            runner = WholeStep(
                imported, interface, here, interface.first_state(self.state), cuda_graph=captures
            )
        else:
            gradients = gradient_interface(imported.view, self.update, self.pairs, imported.constants)
            interface = gradients.step
            first = interface.first_state(self.state)
            runner = FlatStep(imported, gradients, self.update, here, first, cuda_graph=captures)
        return OpenStep(imported=imported, interface=interface, runner=runner, runtime=here.runtime)


def _rehearsal(step: OpenStep) -> Callable[[], object]:
    """Give what runs a step on numbers that are made up."""
    made_up = synthesize(step.imported.view)
    # The learning rate is an input of the session, not of a graph without an update.
    feeds = {
        name: made_up[name] if name in made_up else spec.fitted(0.0)
        for name, spec in step.interface.feeds.items()
    }
    return lambda: step.runner.run(feeds, step.interface)
