"""Steps that take turns: torch's in this process, each of ours in one of its own."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.bench.bench import TOLERANCE
from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.loading import Loaded
from campo_onnx.bench.result import BenchResult
from campo_onnx.bench.rounds import (
    RUNS,
    Progress,
    Rounds,
    Schedule,
    merged,
    pause_between,
    rows_of,
    time_rounds,
    time_runs,
)
from campo_onnx.bench.worker import WorkerStep
from campo_onnx.errors import CampoError, UnsupportedModelError, UsageError
from campo_onnx.export.torch.arguments import arguments
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.integrations.trial.result import EAGER, GradientError
from campo_onnx.integrations.trial.torch_steps import Gradients, TorchStep, torch_steps
from campo_onnx.ir.importer import Imported
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Step, time_behind_another
from campo_onnx.step import naming as step_naming

_ROUNDING = 1e-3
"""Share of the largest gradient below which another counts as that large."""


def gradient_error(
    name: str, loss: float, gradients: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]
) -> GradientError:
    """Compare every gradient of a step.

    >>> exact = {"grad.w": np.array([3.0, 4.0]), "grad.b": np.array([0.0])}
    >>> error = gradient_error("ours", 1.0, exact | {"grad.w": np.array([3.0, 4.5])}, exact)
    >>> error.whole, error.parameter
    (0.1, 'w')
    """
    off = {key: _norm(np.asarray(gradients[key], np.float64) - value) for key, value in exact.items()}
    sizes = {key: _norm(value) for key, value in exact.items()}
    least = _ROUNDING * max(sizes.values(), default=0.0)
    shares = {key: off[key] / max(sizes[key], least) for key in exact if off[key] > 0}
    worst = max(shares, key=lambda key: shares[key], default="")
    total = float(np.hypot.reduce(list(sizes.values()) or [0.0]))
    return GradientError(
        name=name,
        loss=loss,
        whole=float(np.hypot.reduce(list(off.values()) or [0.0])) / total if total else 0.0,
        worst=shares.get(worst, 0.0),
        parameter=worst.removeprefix("grad."),
    )


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.ravel()))


_PAUSE_S = 0.02
"""Between two steps: threads of OpenMP, which torch runs on, spin behind each parallel region, for 3.6 ms on
Zen 4, and several times as long on processors whose ``pause`` instruction takes longer."""

_ONE_RUN = (
    "Steps are slow here, and were loaded once: intervals leave out what loading them again would change."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """Everything that takes turns."""

    user: TorchStep
    graphs: Mapping[str, Path]
    batch: Path
    machine: Machine

    def measured(
        self, *, compiles: bool, rounds: int, budget_s: float | None, seed: int, on_progress: Progress
    ) -> tuple[BenchResult, tuple[GradientError, ...]]:
        """Run the first step of each to compare its gradients, then let them take turns.

        A KeyboardInterrupt is passed on before the first round is complete.
        """
        of_torch, began = torch_steps(self.user, compiles=compiles), time.monotonic()
        errors, failures, exact = self._first_of_torch(of_torch)
        timed: dict[str, Step] = {
            name: partial(time_behind_another, run) for name, run in of_torch.items() if name not in failures
        }
        loaded = self._load([*timed, *self.graphs], timed)
        for name, step in loaded.steps.items():
            if isinstance(step, WorkerStep):
                results = step.results()
                errors.append(gradient_error(name, float(results[step_naming.LOSS]), results, exact))
        loaded = replace(loaded, failures={**failures, **loaded.failures})
        schedule = Schedule(rounds=rounds, warmup=1, budget_s=budget_s)
        time_one = partial(time_rounds, pause=pause_between(self.machine, _PAUSE_S))
        if budget_s is not None and RUNS * (time.monotonic() - began) > budget_s:
            # Loading large steps in every run would take more time than there is for all rounds.
            runs: tuple[Rounds, ...] = (time_one(loaded.steps, schedule, seed=seed, on_progress=on_progress),)
            loaded = replace(loaded, notes=(*loaded.notes, _ONE_RUN))
        else:
            runs, loaded = time_runs(
                loaded,
                lambda names: self._load(names, timed),
                time_one,
                schedule,
                seed=seed,
                on_progress=on_progress,
            )
        loaded.steps.clear()  # which ends the processes
        merged_runs = merged(runs)
        names = [*of_torch, *self.graphs]
        batch = self.user.batch_size
        result = BenchResult(
            machine=self.machine,
            rows=tuple(rows_of(names, runs, failures=loaded.failures, tolerance=TOLERANCE, batch=batch)),
            steps=merged_runs.count,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            samples_us=merged_runs.samples_us,
            rounds_per_run=tuple(run.count for run in runs),
            tolerance=TOLERANCE,
            batch=batch,
            interrupted=merged_runs.interrupted,
            notes=loaded.notes,
        )
        return result, tuple(errors)

    def _first_of_torch(
        self, of_torch: Mapping[str, Callable[[], float]]
    ) -> tuple[list[GradientError], dict[str, Failure], Gradients]:
        errors: list[GradientError] = []
        failures: dict[str, Failure] = {}
        exact: Gradients = {}
        for name, run in of_torch.items():
            try:
                loss = run()
            except UsageError as error:  # under autocast, or compiled, it may fail as it does not otherwise
                if name == EAGER:
                    raise
                failures[name] = Failure(text=error.why, exit_code=UnsupportedModelError.exit_code)
                continue
            gradients = self.user.gradients()
            if name == EAGER:
                exact = gradients
            errors.append(gradient_error(name, loss, gradients, exact))
        return errors, failures, exact

    def _load(self, names: Collection[str], timed: Mapping[str, Step]) -> Loaded:
        """Start a process for each graph; torch's steps stay as they are."""
        steps: dict[str, Step] = {name: step for name, step in timed.items() if name in names}
        failures: dict[str, Failure] = {}
        notes: list[str] = []
        for name, path in self.graphs.items():
            if name not in names:
                continue
            folder = path.with_suffix("")
            folder.mkdir(exist_ok=True)
            try:
                steps[name] = step = WorkerStep(path, self.batch, folder, self.machine)
            except CampoError as error:
                failures[name] = failure_of(error)
                continue
            if step.note:
                notes.append(f"{name}: {step.note}")
        return Loaded(steps=steps, failures=failures, notes=tuple(notes))


def write_batch(user: TorchStep, exported: Imported, path: Path) -> None:
    """Write a value for every input of an exported step: torch's weights and its batch."""
    inputs = arguments(
        user.inputs, user.module.forward, skip=0, kind="input", name_of=step_naming.batch_input
    )
    targets = arguments(user.targets, user.loss, skip=1, kind="target", name_of=step_naming.target)
    feeds = first_state(user.module, exported.model)
    for name, tensor in (inputs.tensors | targets.tensors).items():
        if name in exported.view.inputs:
            feeds[name] = tensor.detach().cpu().numpy()
    np.savez(path, allow_pickle=False, **feeds)
