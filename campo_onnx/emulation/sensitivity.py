"""The error that each rounding of a step adds to its outputs, from emulated steps on batches.

Where there are more roundings than steps that may be emulated, all are estimated to first order
(:mod:`campo_onnx.emulation.first_order`). Then regions of the graph are rounded, beginning with all of it. A
region whose error is what its roundings are estimated to add up to is done. In others something chooses
otherwise when it is rounded, such as a rectifier near zero or a pooling of near equals, which no derivative
shows: they are split in halves, the worst first, and their roundings share what was measured.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from campo_onnx.emulation.adjoint.rule import NoRuleError
from campo_onnx.emulation.affordable import nominal_step_s
from campo_onnx.emulation.drift import Arrays, Reference
from campo_onnx.emulation.emulated_steps import EmulatedSteps
from campo_onnx.emulation.first_order import DIRECTIONS, FirstOrder, first_order, squared_error
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.rounded import with_roundings
from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import FLOAT, GraphView
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding, roundings
from campo_onnx.optimize.safety import earlier_versions
from campo_onnx.optimize.strategies.optimal import free_nodes
from campo_onnx.runtime.registry import machine

MOST_RUNS = 200
"""Emulated steps for each batch that round, unless they take too long or another number is told."""

_RUNS_S = 600.0
"""Seconds that these may take in all, as sizes tell. A core takes half of it; gradients take the rest."""

_AGREES = 2.0
"""Factor between measured and estimated squared error of a region that needs no closer look."""

_UNIMPORTANT = 1e-3
"""Share of the squared error of all roundings below which a disagreement is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Errors of single roundings.

    Parameters
    ----------
    squared_errors
        By rounding, what it adds to the squared error alone
        (:meth:`campo_onnx.emulation.drift.Reference.squared_error_of`), the mean over the batches.
    together
        Roundings that were measured together with others, for want of runs; each bears a share of what was
        measured, as large as first order says, or an equal one where it says nothing.
    directions
        Steps with gradients that it took besides; 0 where first order was not needed, or an operator has no
        rule.
    """

    squared_errors: Mapping[Rounding, float]
    together: int
    runs: int
    directions: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "squared_errors", MappingProxyType(dict(self.squared_errors)))


def references_of(imported: Imported, batches: Sequence[Arrays]) -> tuple[Reference, ...]:
    """Prepare the FP32 step on each batch.

    Raises
    ------
    ModelError
        If the step fails on a batch, or is not finite.
    UsageError
        If there is no batch, or no output that an error could show in.
    """
    if not batches:
        raise UsageError("there is no batch to measure errors on", remedy="Give at least one.")
    outputs = (imported.view.tensors[name].dtype for name in imported.view.outputs)
    if not any(dtype == FLOAT or is_low_dtype(dtype) for dtype in outputs):
        raise UsageError(
            "the graph returns no floating-point values",
            why="errors are those of the loss, of gradients and of new weights",
            remedy="Export the step with its loss and its gradients as outputs.",
        )
    references = tuple(
        Reference(
            model=_fp32_step(imported),
            feeds=feeds,
            earlier=earlier_versions(imported.view),
            machine=machine("cpu"),
            folder=imported.folder,
        )
        for feeds in batches
    )
    for reference in references:
        for name, value in reference.outputs.items():
            if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
                raise ModelError(
                    f"the FP32 step is not finite in {name!r}",
                    why="errors are measured against it",
                    remedy="Give a batch it is finite on.",
                )
    return references


def _fp32_step(imported: Imported) -> onnx.ModelProto:
    is_mixed = any(is_low_dtype(info.dtype) for info in imported.view.tensors.values())
    return seeded(emulate(imported.model) if is_mixed else imported.model)


def measure_sensitivities(
    problem: Problem,
    steps: EmulatedSteps,
    *,
    most_runs: int | None = None,
    directions: int = DIRECTIONS,
    tell: Callable[[int, int], None] = lambda runs, most: None,
) -> Sensitivities:
    """Measure what each rounding adds to the error: alone, or to first order and region by region.

    Parameters
    ----------
    most_runs
        Emulated steps for each batch that round; by default as many as ten minutes hold (:func:`runs_for`).
        With as many as there are roundings each is rounded alone.
    directions
        Steps with gradients for each batch, otherwise (:mod:`campo_onnx.emulation.first_order`).
    """
    if most_runs is None:
        most_runs = runs_for(problem.view, len(steps.references))
    if most_runs < 1:
        raise UsageError(f"{most_runs} runs measure nothing", remedy="Allow at least one.")
    every = roundings(problem, free_nodes(problem))
    measure = _Measure(problem, steps, tell)
    if len(every) <= most_runs:
        measure.most = len(every)
        single = {one: measure((one,)) for one in every}
        return Sensitivities(squared_errors=single, together=0, runs=measure.runs * len(steps.references))
    measure.most = most_runs + directions
    estimates = measure.estimates(every, directions)
    errors = {one: math.inf for one in every if estimates.get(one) == math.inf}
    regions = _Regions(measure, estimates, [one for one in every if one not in errors])
    regions.split(most_runs)
    return Sensitivities(
        squared_errors=regions.shared() | errors,
        together=sum(len(region.group) for region in regions.all if len(region.group) > 1 and region.error),
        runs=regions.runs * len(steps.references),
        directions=directions * len(steps.references) if estimates else 0,
    )


def runs_for(view: GraphView, batches: int) -> int:
    """Choose how many steps round on each batch, from the sizes of the step: the same on every machine."""
    return max(1, min(MOST_RUNS, int(_RUNS_S / (nominal_step_s(view) * batches))))


@dataclass(frozen=True, slots=True)
class _Region:
    """Neighbouring roundings, their squared error together, and what it is estimated to be."""

    first: int
    group: Sequence[Rounding]
    error: float
    estimate: float | None

    @property
    def gap(self) -> float:
        """Error of the estimate; without one, the whole error."""
        return abs(self.error - (self.estimate or 0.0))

    @property
    def agrees(self) -> bool:
        if self.estimate is None or not self.error:
            return not self.error
        return self.estimate / _AGREES <= self.error <= self.estimate * _AGREES


class _Regions:
    """Regions of the graph, the one that disagrees most with its estimate first."""

    def __init__(
        self, measure: "_Measure", estimates: Mapping[Rounding, float], every: Sequence[Rounding]
    ) -> None:
        self._measure, self._estimates = measure, estimates
        self._open: list[tuple[float, int, _Region]] = []
        self._done: list[_Region] = []
        self.runs = 0
        if every:
            self._add(0, every)
        self._least = _UNIMPORTANT * sum(region.error for region in self.all)

    @property
    def all(self) -> list[_Region]:
        """All regions; each rounding is in one."""
        return [*self._done, *(region for _, _, region in self._open)]

    def split(self, most_runs: int) -> None:
        """Split regions in halves until the runs are used up, or none disagrees."""
        while self._open and self.runs + 2 <= most_runs:
            _, _, region = heapq.heappop(self._open)
            half = len(region.group) // 2
            if not half or region.agrees or region.gap <= self._least:
                self._done.append(region)
                continue
            self._add(region.first, region.group[:half])
            self._add(region.first + half, region.group[half:])

    def _add(self, first: int, group: Sequence[Rounding]) -> None:
        region = _Region(first, group, self._measure(group), self._estimate(group))
        self.runs += 1
        heapq.heappush(self._open, (-region.gap, first, region))

    def _estimate(self, group: Sequence[Rounding]) -> float | None:
        """Add up what first order says; a tensor that is rounded twice in a group counts once."""
        if not self._estimates:
            return None
        low = {name for one in group for name in one.nodes}
        return math.fsum(self._estimates[one] for one in group if one.unless not in low)

    def shared(self) -> dict[Rounding, float]:
        """Let the roundings of each region share what was measured."""
        errors: dict[Rounding, float] = {}
        for region in self.all:
            shares = [self._estimates.get(one, 1.0) for one in region.group]
            whole = sum(shares) if region.estimate is None else region.estimate
            for one, share in zip(region.group, shares, strict=True):
                errors[one] = region.error * share / whole if whole else region.error / len(region.group)
        return errors


class _Measure:
    """Emulated steps of a problem, counted."""

    def __init__(self, problem: Problem, steps: EmulatedSteps, tell: Callable[[int, int], None]) -> None:
        self._problem, self._steps, self._tell = problem, steps, tell
        self.runs = 0
        self.most = 0

    def __call__(self, group: Sequence[Rounding]) -> float:
        """Round as some roundings say, and return the squared error."""
        error = self._steps.squared_error(
            with_roundings(self._steps.references[0].model, group, self._problem)
        )
        self._count()
        return error

    def estimates(self, every: Sequence[Rounding], directions: int) -> Mapping[Rounding, float]:
        """Estimate every squared error to first order; give nothing where an operator has no rule."""
        references = self._steps.references
        try:
            model = first_order(self._problem, references, every)
        except NoRuleError:
            self.most -= directions
            return {}
        sums: list[list[Any]] = []
        for direction in range(directions):
            sums.append([self._sums(model, batch, direction) for batch in range(len(references))])
            self._count()
        reached = {
            one: math.fsum(squared_error([of[batch][n] for of in sums]) for batch in range(len(references)))
            for n, one in enumerate(model.outputs)
        }
        return {one: reached.get(one, 0.0) / len(references) for one in every}

    def _sums(self, model: FirstOrder, batch: int, direction: int) -> Any:
        return self._steps.once(
            f"{model.digest} {batch} {direction}",
            lambda: [*model.sums(self._steps.references[batch], direction).values()],
        )

    def _count(self) -> None:
        self.runs += 1
        self._tell(self.runs, self.most)
