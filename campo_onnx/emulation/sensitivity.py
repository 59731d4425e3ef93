"""The error that each rounding of a step adds to its outputs, from emulated steps on batches."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx

from campo_onnx.emulation.drift import Arrays, Reference
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.rounded import with_roundings
from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding, roundings
from campo_onnx.optimize.safety import earlier_versions
from campo_onnx.optimize.strategies.optimal import free_nodes
from campo_onnx.runtime.chunked_run import run_in_pieces
from campo_onnx.runtime.registry import machine

MOST_RUNS = 200
"""Emulated steps for each batch, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Errors of single roundings.

    Parameters
    ----------
    squared_errors
        By rounding, what it adds to the squared error alone
        (:meth:`campo_onnx.emulation.drift.Reference.squared_error_of`), the mean over the batches.
    together
        Roundings that were measured together with others, for want of runs; each bears an equal share.
    runs
        Emulated steps that it took.
    """

    squared_errors: Mapping[Rounding, float]
    together: int
    runs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "squared_errors", MappingProxyType(dict(self.squared_errors)))


def references_of(imported: Imported, batches: Sequence[Arrays]) -> tuple[Reference, ...]:
    """Prepare the FP32 step on each batch.

    Raises
    ------
    ModelError
        If the step fails on a batch, or is not finite.
    UsageError
        If there is no batch.
    """
    if not batches:
        raise UsageError("there is no batch to measure errors on", remedy="Give at least one.")
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
    references: Sequence[Reference],
    *,
    most_runs: int = MOST_RUNS,
    tell: Callable[[int, int], None] = lambda runs, most: None,
) -> Sensitivities:
    """Round one tensor for one reader, or for all, at a time, and measure what that does to the outputs.

    Where there are more roundings than runs, those next to each other are measured together. The group with
    the largest error is split in halves until the runs are used up.

    Parameters
    ----------
    problem
        The graph, its ports, and which of its nodes may be low.
    references
        The FP32 step on each batch (:func:`references_of`).
    most_runs
        Emulated steps for each batch.
    tell
        Called with the steps done, and the most there may be, after each.

    Raises
    ------
    UsageError
        If `most_runs` is not positive.
    """
    if most_runs < 1:
        raise UsageError(f"{most_runs} runs measure nothing", remedy="Allow at least one.")
    every = roundings(problem, free_nodes(problem))
    measure = _Measure(problem, references, min(most_runs, 2 * len(every)), tell)
    groups: list[tuple[float, int, Sequence[Rounding]]] = []

    def add(first: int, group: Sequence[Rounding]) -> None:
        heapq.heappush(groups, (-measure(group), first, group))

    if len(every) <= most_runs:
        for first, rounding in enumerate(every):
            add(first, (rounding,))
    else:
        add(0, every)
        done = list[tuple[float, int, Sequence[Rounding]]]()
        while groups and measure.runs + 2 <= most_runs:
            error, first, group = heapq.heappop(groups)
            if len(group) == 1 or error == 0.0:
                done.append((error, first, group))
                continue
            half = len(group) // 2
            add(first, group[:half])
            add(first + half, group[half:])
        groups += done
    return Sensitivities(
        squared_errors={r: -error / len(group) for error, _, group in groups for r in group},
        together=sum(len(group) for error, _, group in groups if len(group) > 1 and error),
        runs=measure.runs * len(references),
    )


def mean_squared_error(model: onnx.ModelProto, references: Sequence[Reference]) -> float:
    """Run a step on every batch, and average its squared errors."""
    squares = (
        r.squared_error_of(run_in_pieces(model, r.feeds, r.machine, folder=r.folder)) for r in references
    )
    return sum(squares) / len(references)


class _Measure:
    """Emulated steps, counted."""

    def __init__(
        self,
        problem: Problem,
        references: Sequence[Reference],
        most_runs: int,
        tell: Callable[[int, int], None],
    ) -> None:
        self._problem, self._references = problem, references
        self._most_runs, self._tell = most_runs, tell
        self.runs = 0

    def __call__(self, group: Sequence[Rounding]) -> float:
        """Round as some roundings say, and return the squared error."""
        self.runs += 1
        model = with_roundings(self._references[0].model, group, self._problem)
        error = mean_squared_error(model, self._references)
        self._tell(self.runs, self._most_runs)
        return error
