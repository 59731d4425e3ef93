"""Safety measured on data: forbid what breaks on real batches, release from taint what is harmless.

Lists are blunt. They allow what may overflow on this network's values, and they forbid everything
downstream of a deny node although its rounding may not be felt in any gradient.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.passes import neighbours, taint
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.reason import Reason, Verdict
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.options import Options
from campo_onnx.pipeline import decide, problem_of
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run
from campo_onnx.training.numerics import drift_of, emulate, seeded
from campo_onnx.training.ranges import Range, ranges_of

Feeds = Mapping[str, NDArray[Any]]
Progress = Callable[[str], None]

DEFAULT_BUDGET = 1e-2
"""Relative error a gradient may have."""

LOST_MASS = 2.0**-11
"""Share of a tensor's magnitude that may become zero: what FP16's own rounding loses."""

SLACK = 1.25
"""Where the lists alone exceed the budget already, releases may add this much: rounding elsewhere moves
an ill-conditioned gradient by about as much either way."""

MOST_TRIALS = 24
"""Emulated steps the search for harmless releases may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSafety:
    """What data says of a graph.

    Parameters
    ----------
    forbidden
        Nodes that would break, with the reason.
    released
        Tainted nodes that are shown harmless together.
    ranges
        Range of every tensor that was looked at.
    drift_before, drift_after
        Relative error of every output against FP32, with the lists' taint and with the releases.
    gain_us
        Predicted time that the releases save.
    trials
        Emulated steps it took.
    """

    forbidden: Mapping[str, Verdict]
    released: frozenset[str]
    ranges: Mapping[str, Range]
    drift_before: Mapping[str, float]
    drift_after: Mapping[str, float]
    gain_us: float
    trials: int

    def applied_to(self, options: Options) -> Options:
        """Options that plan with what was found."""
        return replace(options, forbidden=self.forbidden, released=self.released)


def measure_safety(
    imported: Imported,
    options: Options,
    batches: Sequence[Feeds],
    *,
    budget: float = DEFAULT_BUDGET,
    tell: Progress = lambda _: None,
) -> DataSafety:
    """Run the FP32 step on real batches and decide by what each node computes there.

    1. A node with an input or output that overflows, or of whose magnitude more than
       :data:`LOST_MASS` becomes zero, is forbidden.
    2. Tainted nodes are released as far as the mixed step, emulated, keeps every output within the
       budget (or within :data:`SLACK` times what the lists alone give, where that is more). All of
       them together are tried first, then halves; what is returned was tested together.

    The loss, the weight update and graph inputs and outputs are never released.

    Parameters
    ----------
    imported, options
        The step, and how it would be planned.
    batches
        Values for every input, loss scale included.
    budget
        Relative error an output may have.
    tell
        Called with a sentence whenever a stage begins.

    Raises
    ------
    UsageError
        If the budget is not positive, there is no batch, or the FP32 step itself is not finite.
    """
    if not budget > 0:
        raise UsageError(f"the error budget is {budget:g}", remedy="Give a positive one, such as 1e-2.")
    if imported.stamp is not None:
        raise UsageError(
            "the model is a result of campo-onnx already",
            why="its precision is decided",
            remedy="Give the FP32 file it was made from.",
        )
    if not batches:
        raise UsageError("safety on data needs a batch", remedy="Give one with --inputs batch.npz.")
    for feeds in batches:
        _refuse_unfinite(feeds, "the batch", "is no number")
    here = machine("cpu")
    given = seeded(imported.model)
    tell("running the FP32 step")
    expected = [run(given, feeds, here) for feeds in batches]
    for outputs in expected:
        _refuse_unfinite(outputs, "the FP32 step", "is not finite on this batch")
    problem = problem_of(imported, options)
    tell("recording ranges")
    found = ranges_of(given, _reads_and_results(problem), batches, options.low, here)
    forbidden = MappingProxyType(dict(_breaking(problem, found)))
    cautious = replace(options, forbidden=forbidden, released=frozenset())
    search = _Search(imported, cautious, batches, expected, budget, tell)
    before, drift_before = search.trial(frozenset())
    search.limits = {name: max(budget, SLACK * error) for name, error in drift_before.items()}
    released, after, drift_after = search.best(_groups(problem_of(imported, cautious)), before, drift_before)
    return DataSafety(
        forbidden=forbidden,
        released=released,
        ranges=MappingProxyType(found),
        drift_before=MappingProxyType(drift_before),
        drift_after=MappingProxyType(drift_after),
        gain_us=before.predicted_us - after.predicted_us,
        trials=search.trials,
    )


class _Search:
    """Looks for the largest set of releases that keeps every output within its limit."""

    def __init__(
        self,
        imported: Imported,
        options: Options,
        batches: Sequence[Feeds],
        expected: Sequence[Feeds],
        budget: float,
        tell: Progress,
    ) -> None:
        self.trials = 0
        self.limits: Mapping[str, float] = {}
        self._imported, self._options = imported, options
        self._batches, self._expected = batches, expected
        self._budget, self._tell = budget, tell

    def trial(self, released: frozenset[str]) -> tuple[Plan, dict[str, float]]:
        """Plan with `released`, emulate the result, and compare every output."""
        self.trials += 1
        self._tell(f"emulating the mixed step, trial {self.trials}")
        options = replace(self._options, released=released)
        plan = decide(problem_of(self._imported, options), self._imported, options)
        mixed = seeded(emulate(rewrite(self._imported, plan), self._options.dims))
        worst: dict[str, float] = {}
        for feeds, expected in zip(self._batches, self._expected, strict=True):
            for name, error in drift_of(run(mixed, feeds, machine("cpu")), expected).items():
                worst[name] = max(worst.get(name, 0.0), error)
        return plan, worst

    def best(
        self, groups: Sequence[frozenset[str]], before: Plan, drift_before: dict[str, float]
    ) -> tuple[frozenset[str], Plan, dict[str, float]]:
        """Add groups, many at once, as long as all limits hold."""
        released: frozenset[str] = frozenset()
        plan, drift = before, drift_before
        pending = [list(groups)] if groups else []
        while pending and self.trials < MOST_TRIALS:
            candidates = pending.pop(0)
            tried = released.union(*candidates)
            tried_plan, tried_drift = self.trial(tried)
            if all(error <= self.limits[name] for name, error in tried_drift.items()):
                if tried_plan.predicted_us <= plan.predicted_us:
                    released, plan, drift = tried, tried_plan, tried_drift
            elif len(candidates) > 1:
                half = len(candidates) // 2
                pending += [candidates[:half], candidates[half:]]
        return released, plan, drift


def _reads_and_results(problem: Problem) -> Iterator[str]:
    for node in problem.view.nodes:
        if problem.is_free(node.name):
            yield from _low_tensors(problem, node.name)


def _low_tensors(problem: Problem, name: str) -> Iterator[str]:
    node, ports = problem.view.node[name], problem.ports[name]
    for index in sorted(ports.low_inputs):
        yield node.inputs[index]
    for index in sorted(ports.low_outputs):
        yield node.outputs[index]


def _breaking(problem: Problem, ranges: Mapping[str, Range]) -> Iterator[tuple[str, Verdict]]:
    for node in problem.view.nodes:
        if not problem.is_free(node.name):
            continue
        for tensor in _low_tensors(problem, node.name):
            found = ranges[tensor]
            if found.overflow_share > 0:
                verdict = Verdict(
                    decided_by=Reason.DATA_OVERFLOW,
                    facts={"tensor": tensor, "value": found.largest, "low": problem.low.value},
                )
            elif found.lost_mass > LOST_MASS:
                verdict = Verdict(
                    decided_by=Reason.DATA_UNDERFLOW,
                    facts={
                        "tensor": tensor,
                        "flushed_share": found.flushed_share,
                        "lost_share": found.lost_mass,
                        "low": problem.low.value,
                    },
                )
            else:
                continue
            yield node.name, verdict
            break


def _groups(problem: Problem) -> list[frozenset[str]]:
    """Connected groups of tainted free nodes, the most promising first."""
    tainted = {name for name in taint(problem.view, problem.classification) if problem.is_free(name)}
    groups: list[frozenset[str]] = []
    seen: set[str] = set()
    for node in problem.view.nodes:
        if node.name in seen or node.name not in tainted:
            continue
        group, pending = {node.name}, [node]
        while pending:
            for other in neighbours(pending.pop(), problem.view):
                if other.name in tainted and other.name not in group:
                    group.add(other.name)
                    pending.append(other)
        seen |= group
        groups.append(frozenset(group))
    gains = problem.costs.nodes
    return sorted(groups, key=lambda group: -sum(max(gains[name].gain_us, 0.0) for name in group))


def _refuse_unfinite(arrays: Feeds, what: str, why: str) -> None:
    for name, value in arrays.items():
        if np.issubdtype(value.dtype, np.floating) and np.isnan(value).any():
            raise UsageError(
                f"{what} holds NaN in {name!r}",
                why=f"a value {why}",
                remedy="Give a batch that trains in FP32.",
            )
