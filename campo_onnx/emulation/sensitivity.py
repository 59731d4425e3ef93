"""The error that each rounding of a step adds to its outputs, from emulated steps on batches.

Where there are more roundings than steps that may be emulated, all are estimated to first order
(:mod:`campo_onnx.emulation.first_order`). Then roundings of about the same estimate are rounded together: a
few large ones would hide what the others do, and most plans leave these out. A group whose error is what its
roundings are estimated to add up to is done. In others something chooses otherwise when it is rounded,
such as a rectifier near zero or a pooling of near equals, which no derivative shows: they are split in halves
along the graph, the worst first, and their roundings share what was measured.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from campo_onnx.emulation.adjoint.rule import NoRuleError
from campo_onnx.emulation.affordable import nominal_step_s
from campo_onnx.emulation.drift import Arrays, Reference, references, unfinite_in
from campo_onnx.emulation.emulated_steps import EmulatedSteps
from campo_onnx.emulation.first_order import DIRECTIONS, FirstOrder, first_order, squared_error
from campo_onnx.emulation.rounded import with_roundings
from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import FLOAT, GraphView
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding, roundings
from campo_onnx.optimize.strategies.optimal import free_nodes

MOST_RUNS = 200
"""Emulated steps for each batch that round, unless they take too long or another number is told."""

_RUNS_S = 600.0
"""Seconds that these may take in all, as sizes tell. A core takes half of it; gradients take the rest."""

_AGREES = 2.0
"""Factor between measured and estimated squared error of a group that needs no closer look."""

_UNIMPORTANT = 1e-3
"""Share of the squared error of a band of roundings below which a disagreement within it is left alone."""

_MOST_BANDS = 8
"""Decades of estimated squared error, from the largest down, that are rounded separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Errors of single roundings."""

    # By rounding, what it adds alone to `Reference.squared_error_of`: the mean over the batches.
    squared_errors: Mapping[Rounding, float]
    # Roundings that were measured together with others, for want of runs; each bears a share of what was
    # measured, as large as first order says, or an equal one where it says nothing.
    together: int
    runs: int
    # Steps with gradients that it took besides; 0 where first order was not needed, or an operator has no
    # rule.
    directions: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "squared_errors", MappingProxyType(dict(self.squared_errors)))


def references_of(imported: Imported, batches: Sequence[Arrays]) -> tuple[Reference, ...]:
    """Prepare the FP32 step on each batch."""
    if not batches:
        raise UsageError("there is no batch to measure errors on", remedy="Give at least one.")
    outputs = (imported.view.tensors[name].dtype for name in imported.view.outputs)
    if not any(dtype == FLOAT or is_low_dtype(dtype) for dtype in outputs):
        raise UsageError(
            "the graph returns no floating-point values",
            why="errors are those of the loss, of gradients and of new weights",
            remedy="Export the step with its loss and its gradients as outputs.",
        )
    steps = references(imported, batches)
    for name in filter(None, (unfinite_in(step.outputs) for step in steps)):
        raise ModelError(
            f"the FP32 step is not finite in {name!r}",
            why="errors are measured against it",
            remedy="Give a batch it is finite on.",
        )
    return steps


def measure_sensitivities(
    problem: Problem,
    steps: EmulatedSteps,
    *,
    most_runs: int | None = None,
    directions: int = DIRECTIONS,
    tell: Callable[[int, int], None] = lambda runs, most: None,
) -> Sensitivities:
    """Measure what each rounding adds to the error: alone, or to first order and group by group.

    `most_runs`: emulated steps for each batch that round; by default as many as ten minutes hold
    (:func:`runs_for`). With as many as there are roundings each is rounded alone.
    `directions`: steps with gradients for each batch, otherwise (:mod:`campo_onnx.emulation.first_order`).
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
    groups = _Groups(measure, estimates, [one for one in every if one not in errors], most_runs)
    groups.split(most_runs)
    return Sensitivities(
        squared_errors=groups.shared() | errors,
        together=sum(len(one.roundings) for one in groups.all if len(one.roundings) > 1 and one.error),
        runs=groups.runs * len(steps.references),
        directions=directions * len(steps.references) if estimates else 0,
    )


def runs_for(view: GraphView, batches: int) -> int:
    """Choose how many steps round on each batch, from the sizes of the step: the same on every machine."""
    return max(1, min(MOST_RUNS, int(_RUNS_S / (nominal_step_s(view) * batches))))


@dataclass(frozen=True, slots=True)
class _Group:
    """Some roundings, their squared error together, and what it is estimated to be."""

    roundings: Sequence[Rounding]
    error: float
    estimate: float | None
    least: float  # squared error by which the estimate may be wrong

    @property
    def gap(self) -> float:
        """Error of the estimate; without one, the whole error."""
        return abs(self.error - (self.estimate or 0.0))

    @property
    def agrees(self) -> bool:
        if self.estimate is None or not self.error:
            return not self.error
        return self.estimate / _AGREES <= self.error <= self.estimate * _AGREES


class _Groups:
    """Groups of roundings, the one that disagrees most with its estimate first."""

    def __init__(
        self,
        measure: "_Measure",
        estimates: Mapping[Rounding, float],
        every: Sequence[Rounding],
        most_runs: int,
    ) -> None:
        self._measure, self._estimates = measure, estimates
        self._open: list[tuple[float, int, _Group]] = []
        self._done: list[_Group] = []
        self.runs = 0
        for band in _bands(every, estimates, max(1, min(_MOST_BANDS, most_runs // 2))):
            self._add(band)

    @property
    def all(self) -> list[_Group]:
        """All groups; each rounding is in one."""
        return [*self._done, *(group for _, _, group in self._open)]

    def split(self, most_runs: int) -> None:
        """Split groups in halves until the runs are used up, or none disagrees."""
        while self._open and self.runs + 2 <= most_runs:
            _, _, group = heapq.heappop(self._open)
            half = len(group.roundings) // 2
            if not half or group.agrees or group.gap <= group.least:
                self._done.append(group)
                continue
            self._add(group.roundings[:half], group.least)
            self._add(group.roundings[half:], group.least)

    def _add(self, some: Sequence[Rounding], least: float | None = None) -> None:
        error = self._measure(some)
        allowed = _UNIMPORTANT * error if least is None else least
        group = _Group(some, error, self._estimate(some), allowed)
        self.runs += 1
        heapq.heappush(self._open, (-group.gap, self.runs, group))

    def _estimate(self, group: Sequence[Rounding]) -> float | None:
        """Add up what first order says; a tensor that is rounded twice in a group counts once."""
        if not self._estimates:
            return None
        low = {name for one in group for name in one.nodes}
        return math.fsum(self._estimates[one] for one in group if one.unless not in low)

    def shared(self) -> dict[Rounding, float]:
        """Let the roundings of each group share what was measured."""
        errors: dict[Rounding, float] = {}
        for group in self.all:
            shares = [self._estimates.get(one, 1.0) for one in group.roundings]
            whole = sum(shares) if group.estimate is None else group.estimate
            for one, share in zip(group.roundings, shares, strict=True):
                errors[one] = group.error * share / whole if whole else group.error / len(group.roundings)
        return errors


def _bands(
    every: Sequence[Rounding], estimates: Mapping[Rounding, float], most: int
) -> list[Sequence[Rounding]]:
    """Group roundings by the decade of their estimate, the largest first; in order along the graph."""
    largest = max((estimates.get(one, 0.0) for one in every), default=0.0)
    bands: list[list[Rounding]] = [[] for _ in range(most)]
    for one in every:
        estimate = estimates.get(one, 0.0)
        decade = most - 1 if estimate <= 0.0 else int(math.log10(largest / estimate))
        bands[min(decade, most - 1) if estimates else 0].append(one)
    return [band for band in bands if band]


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
