"""Training on plain ONNX Runtime: a training-step graph, run again and again on its own state."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from numpy.typing import NDArray

from campo_onnx.errors import CheckpointError, UnsupportedModelError, UsageError
from campo_onnx.files.signals import uninterrupted
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.registry import AUTO
from campo_onnx.step.interface import Feed, StepInterface
from campo_onnx.step.naming import GRADS_FINITE, LOSS, LOSS_SCALE
from campo_onnx.training.batch_sizes import BatchSizes
from campo_onnx.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from campo_onnx.training.flat_step import FlatStep
from campo_onnx.training.index_guard import IndexGuard
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.opened import Opening
from campo_onnx.training.runner import Outcome, Result
from campo_onnx.training.schedules import Schedule
from campo_onnx.training.weight_update import WeightUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one training step."""

    step: int  # its number; the first is 1. Skipped steps count.
    # outputs that are not state, by name: the loss, and what else the graph returns
    metrics: Mapping[str, NDArray[Any]]
    skipped: bool  # whether a gradient overflowed, so that the state stayed as it was
    loss_scale: float | None  # the scale the step ran with; None for a graph without one
    duration_s: float  # time from feeding the batch to having the metrics
    samples: int  # size of the batch: the leading dimension of the first input fed step by step that has one
    # whether the weights were updated: neither in a skipped step, nor while gradients accumulate
    updated: bool = True

    @property
    def samples_per_s(self) -> float:
        """Samples per second of this step alone, without the time in which the batch was made."""
        return self.samples / self.duration_s

    @property
    def loss(self) -> float:
        """The output ``loss``."""
        return float(self.metrics[LOSS])


class TrainingSession:
    """A training step that keeps its state on the device.

    A step that overflows leaves weights, optimizer state and statistics as they were, and so does one
    that fails. Handlers of signals wait for a step that runs: after Ctrl-C, or a timeout whose handler
    raises, the session may be saved and trained on.

    Parameters
    ----------
    model
        A training step: path or model. In ONNX Runtime on a CPU pass ``emulate(model)`` of a mixed graph: it
        does not round there as the graph says (:mod:`campo_onnx.emulation.numerics`).
    state
        First value of every parameter and buffer by input name. Optimizer state starts at zero
        where none is given.
    update
        How to update the weights, for a graph that gives gradients; None for a graph that holds its
        update. See :class:`~campo_onnx.training.flat_step.FlatStep`.
    settings
        Values of inputs that stay from step to step, such as the learning rate, or a schedule that gives
        one for each update (:mod:`campo_onnx.training.schedules`). A batch may overrule them for one step.
    provider
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    scaler
        How the loss scale moves; the dynamic default if the graph has the input ``loss_scale``.
    pairs
        State to pair otherwise than by name, see :mod:`campo_onnx.step.interface`.
    dims
        Sizes of symbolic dimensions; not of a step exported with ``dynamic_shapes``, where batches tell them.
    threads
        Threads per node on a CPU; 0 takes all cores.
    cuda_graph
        Whether CUDA captures the step once and replays it, which saves the launches. Every node
        must then run on the GPU.
    runtime
        Name of the runtime; on a CPU ``"auto"`` takes the faster one of those that are installed, as measured
        on a made-up batch, and keeps that choice for this step and machine; :attr:`runtime` says which. A
        step of any size, or with double or 64-bit arithmetic, is run by ONNX Runtime unless another is named.

    Raises
    ------
    campo_onnx.errors.CampoError
        If the model, the state or the settings do not fit together; see its subclasses.
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        state: Mapping[str, NDArray[Any]],
        *,
        settings: Mapping[str, Feed | Schedule] | None = None,
        update: WeightUpdate | None = None,
        provider: str = "auto",
        scaler: LossScaler | None = None,
        pairs: Mapping[str, str | None] | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int = 0,
        cuda_graph: bool = False,
        runtime: str = AUTO,
    ) -> None:
        opening = Opening(
            imported=import_model(model, dims),
            state=state,
            update=update,
            pairs=pairs,
            dims=dims,
            cuda_graph=cuda_graph,
        )
        step = opening.opened(provider, threads, runtime)
        self.interface, self.runtime, self._runner = step.interface, step.runtime, step.runner
        self._unscales = update is not None
        self._scaler = self._checked_scaler(scaler)
        self._schedules = {n: value for n, value in (settings or {}).items() if callable(value)}
        fixed = {n: value for n, value in (settings or {}).items() if not callable(value)}
        self._window = 1 if update is None else update.accumulate
        self._steps = self._updates = 0  # skipped ones included
        self._settings = self._checked_feeds(fixed)
        self._settings |= self._scheduled()
        guard = IndexGuard.of(step.imported, self.interface.feeds)
        self._sizes = BatchSizes(imported=step.imported, interface=self.interface, guard=guard)

    @property
    def scaler(self) -> LossScaler | None:
        """The loss scaler as it stands; None for a graph without a loss scale."""
        return self._scaler

    @property
    def steps(self) -> int:
        """Steps taken so far, skipped ones included."""
        return self._steps

    def step(self, batch: Mapping[str, Feed]) -> StepResult:
        """Take one training step.

        Parameters
        ----------
        batch
            A value for every input that is neither state, nor the loss scale, nor set before.

        Raises
        ------
        UsageError
            If an input is missing, unknown, or of another type or shape; nothing has changed then.
        IndexOutOfRangeError
            If a label or an index lies outside of what it looks up in; likewise.
        ModelError
            If the graph fails while it runs; the state is as before the step.
        """
        began = time.perf_counter()
        interface, guard = self._sizes.of(batch)
        feeds = self._settings | self._scheduled() | self._checked_feeds(batch, interface)
        scale = self._scaler.scale if self._scaler is not None else None
        if scale is not None:
            feeds |= self._checked({LOSS_SCALE: scale})
        if missing := [name for name in self.interface.feeds if name not in feeds]:
            raise UsageError(f"the batch lacks {', '.join(missing)}", remedy=self._expected_feeds())
        guard.check(feeds)
        ran = uninterrupted(partial(self._run, feeds, interface))
        return StepResult(
            step=self._steps,
            metrics=MappingProxyType(ran.metrics),
            updated=ran.outcome is Outcome.UPDATED,
            skipped=ran.outcome is Outcome.SKIPPED,
            loss_scale=scale,
            duration_s=time.perf_counter() - began,
            samples=self._samples(interface),
        )

    def _run(self, feeds: Mapping[str, NDArray[Any]], interface: StepInterface) -> Result:
        ran = self._runner.run(feeds, interface)
        self._steps += 1
        if ran.outcome is not Outcome.ACCUMULATED:
            self._updates += 1
            if self._scaler is not None:
                self._scaler = self._scaler.updated(finite=ran.outcome is Outcome.UPDATED)
        return ran

    def train(self, batches: Iterable[Mapping[str, Feed]]) -> Iterator[StepResult]:
        """Take one step per batch, and give each result as soon as it is there.

        Nothing runs ahead: the next batch is asked for when the next result is.
        """
        for batch in batches:
            yield self.step(batch)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy the state from the device, by input name."""
        return self._runner.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put values in the place of parts of the state, by input name; the rest stays.

        Raises
        ------
        UsageError
            If a name is unknown, or a value does not fit; the session then goes on as it was.
        """
        whole = self.interface.first_state({**self.state(), **state})
        uninterrupted(partial(self._runner.load, whole))

    def shared(self) -> dict[str, NDArray[Any]]:
        """Give weights and gradients where they lie on the CPU, ``param.X`` and ``grad.X``, without a copy.

        What changes them changes the session. Gradients are those of the last update, unscaled and
        averaged only if the update has no optimizer. With one, arrays may be strided: the session then keeps
        weights in the order in which the graph reads them.
        """
        if not isinstance(self._runner, FlatStep):
            raise UsageError(
                "the weights of a graph that holds its update cannot be shared",
                why="they move from one place to another with each step",
                remedy="Export the step without an optimizer, and pass `update`.",
            )
        return self._runner.shared()

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, whole or not at all.

        Raises
        ------
        UsageError
            If it cannot be written, or gradients are being accumulated.
        """
        if self._runner.is_within_window:
            raise UsageError(
                "a checkpoint cannot be written while gradients are being accumulated",
                remedy="Write it after a step whose result says updated or skipped, or forget the gradients: "
                "load_state({}).",
            )
        save_checkpoint(
            Checkpoint(
                state=self.state(),
                signature=self.interface.signature,
                steps=self._steps,
                updates=self._updates,
                scaler=self._scaler,
            ),
            Path(path),
        )

    def restore(self, path: str | Path) -> None:
        """Go back to a checkpoint: state, loss scaler and count of steps.

        Raises
        ------
        UsageError
            If it does not exist; the session then goes on as it was.
        CheckpointError
            If it cannot be read, is damaged, or belongs to another model; likewise.
        """
        checkpoint = load_checkpoint(Path(path))
        difference = self.interface.difference(checkpoint.state)
        if not difference and (checkpoint.scaler is None) != (self._scaler is None):
            difference = "only one of the two has a loss scale"
        if difference or checkpoint.signature != self.interface.signature:
            raise CheckpointError(
                f"the checkpoint {path} belongs to another model",
                why=difference or "its signature is another",
                remedy="Restore it into a session of the model it was saved from.",
            )
        uninterrupted(partial(self._load, checkpoint))

    def _load(self, checkpoint: Checkpoint) -> None:
        self._runner.load(checkpoint.state)
        self._scaler, self._steps = checkpoint.scaler, checkpoint.steps
        self._updates = checkpoint.steps // self._window if checkpoint.updates is None else checkpoint.updates

    def _scheduled(self) -> dict[str, NDArray[Any]]:
        values = {name: float(value(self._updates)) for name, value in self._schedules.items()}
        return self._checked_feeds(values)

    def _checked_scaler(self, scaler: LossScaler | None) -> LossScaler | None:
        if LOSS_SCALE not in self.interface.feeds:
            if scaler is not None:
                raise UsageError(
                    f"the graph has no input {LOSS_SCALE!r}",
                    remedy="Export it with a loss scale, or pass no scaler.",
                )
            return None
        if GRADS_FINITE not in self.interface.metrics and not self._unscales:
            raise UnsupportedModelError(
                f"the graph has the input {LOSS_SCALE!r} but no output {GRADS_FINITE!r}",
                why="an overflow could not be told from a good step",
                remedy="Export it with that output: whether every gradient is finite.",
            )
        return scaler if scaler is not None else LossScaler()

    def _checked_feeds(
        self, feeds: Mapping[str, Feed], interface: StepInterface | None = None
    ) -> dict[str, NDArray[Any]]:
        if self._scaler is not None and LOSS_SCALE in feeds:
            raise UsageError(
                f"{LOSS_SCALE!r} is fed by the session",
                remedy="For a fixed scale pass scaler=LossScaler.static(scale).",
            )
        return self._checked(feeds, interface)

    def _checked(
        self, feeds: Mapping[str, Feed], interface: StepInterface | None = None
    ) -> dict[str, NDArray[Any]]:
        specs = (interface or self.interface).feeds
        if unknown := [name for name in feeds if name not in specs]:
            what = f"the graph takes no feed named {', '.join(unknown)}"
            raise UsageError(what, remedy=self._expected_feeds())
        return {name: specs[name].fitted(value) for name, value in feeds.items()}

    def _samples(self, interface: StepInterface) -> int:
        batch = (spec.shape for name, spec in interface.feeds.items() if name not in self._settings)
        return next((shape[0] for shape in batch if shape), 1)

    def _expected_feeds(self) -> str:
        own = {LOSS_SCALE} if self._scaler is not None else set()
        rows = (f"{name} {spec}" for name, spec in self.interface.feeds.items() if name not in own)
        return f"It takes: {'; '.join(rows)}."
