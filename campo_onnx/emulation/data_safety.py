"""Safety measured on data: forbid what breaks on real batches, release from taint what is harmless.

Lists are blunt. They allow what may overflow on this network's values, and they forbid everything
downstream of a deny node although its rounding may not be felt in any gradient.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.emulation.drift import Reference, most_drift, references, worst_drift
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.ranges import Range, ranges_of
from campo_onnx.errors import CheckFailedError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import connected, taint
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, problem_of

Feeds = Mapping[str, NDArray[Any]]
Forbidden = Mapping[str, Verdict]

LOST_MASS = 2.0**-11
"""Share of a tensor's magnitude that may become zero: what FP16's own rounding loses."""

MOST_TRIALS = 24
"""Emulated steps the search for harmless releases may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSafety:
    """Findings of data about a graph."""

    forbidden: Mapping[str, Verdict]
    released: frozenset[str]  # tainted nodes that are shown harmless together
    drift_after: Mapping[str, float]  # relative error of every output against FP32, with the releases
    gain_us: float
    # problem, plan: what was decided about with all this, and the plan, which was emulated.
    problem: Problem
    plan: Plan

    def applied_to(self, options: Options) -> Options:
        """Options that plan with what was found."""
        return replace(
            options,
            forbidden={**self.forbidden, **options.forbidden},
            released=options.released | self.released,
        )


def measure_safety(
    imported: Imported,
    options: Options,
    batches: Sequence[Feeds],
    *,
    budget: float | None = None,
    problem: Problem | None = None,
    plan: Plan | None = None,
) -> DataSafety:
    """Run the FP32 step on real batches and decide by what each node computes there.

    1. A node with an input or output that overflows, or of whose magnitude more than
       :data:`LOST_MASS` becomes zero, is forbidden.
    2. Where the mixed step, emulated, breaks the budget with the lists alone, more stays FP32: first
       all that neither multiplies matrices nor convolves, then half after half of what does, the last
       in the graph first.
    3. Tainted nodes are released as far as every output stays within the budget. All of them together
       are tried first, then halves; what is returned was tested together.

    An output that is a new version of an input (a weight after the update) is measured by what the
    step adds to it; see :class:`campo_onnx.emulation.drift.Reference`.

    The loss, the weight update and graph inputs and outputs are never released.

    `batches`: values for every input, loss scale included.
    `budget`: relative error an output may have; None takes what the low precision allows
    (:func:`campo_onnx.emulation.drift.most_drift`).
    `problem` and `plan`: what is decided about with these options, and the plan of that, where the caller has
    them already.

    Raises UsageError if the budget is not positive, there is no batch, or the FP32 step itself is not finite;
    CheckFailedError if not even the FP32 step keeps the budget when it is run again.
    """
    if budget is None:
        budget = most_drift(options.low)
    if not budget > 0:
        raise UsageError(f"the error budget is {budget:g}", remedy="Give a positive one, such as 1e-2.")
    imported.refuse_result()
    if not batches:
        raise UsageError("safety on data needs a batch", remedy="Give one with --inputs batch.npz.")
    for feeds in batches:
        _refuse_unfinite(feeds, "the batch", "is not a number")
    steps = references(imported, batches)
    for step in steps:
        _refuse_unfinite(step.outputs, "the FP32 step", "is not finite on this batch")
    problem = problem or problem_of(imported, options)
    watched, model, here = _reads_and_results(problem), steps[0].model, steps[0].machine
    ranges = ranges_of(model, watched, batches, options.low, here, folder=imported.folder)
    forbidden: Forbidden = MappingProxyType(dict(_breaking(problem, ranges)))
    search = _Search(imported, options, steps, budget, problem, plan)
    forbidden, before, drift = search.within_budget(problem, forbidden)
    groups = _groups(problem.informed(forbidden, ()))
    released, after, drift_after = search.best(groups, forbidden, before, drift)
    return DataSafety(
        forbidden=forbidden,
        released=released,
        drift_after=MappingProxyType(drift_after),
        gain_us=before.predicted_us - after.predicted_us,
        problem=problem.informed(forbidden, released),
        plan=after,
    )


class _Search:
    """Looks for what must stay FP32, and what may go low, for every output to keep the budget."""

    def __init__(
        self,
        imported: Imported,
        options: Options,
        references: Sequence[Reference],
        budget: float,
        problem: Problem,
        plan: Plan | None,
    ) -> None:
        self.trials = 0
        self._problem, self._plan = problem, plan
        self._imported, self._options = imported, options
        self._references, self._budget = references, budget

    def trial(self, forbidden: Forbidden, released: frozenset[str]) -> tuple[Plan, dict[str, float]]:
        """Plan with `forbidden` and `released`, emulate the result, and compare every output."""
        self.trials += 1
        plan = self._plan
        if plan is None or forbidden or released:
            plan = decide(self._problem.informed(forbidden, released), self._imported, self._options)
        mixed = seeded(emulate(rewrite(self._imported, plan), self._options.dims))
        return plan, worst_drift(mixed, self._references)

    def within_budget(
        self, problem: Problem, forbidden: Forbidden
    ) -> tuple[Forbidden, Plan, dict[str, float]]:
        """Forbid more until the budget holds."""
        plan, drift = self.trial(forbidden, frozenset())
        products = [n.name for n in problem.view.nodes if problem.op_class(n.name) is OpClass.ALLOW]
        allowed = len(products)
        worst = max(drift, key=lambda name: drift[name], default="")
        while drift and drift[worst] > self._budget:
            if not plan.low_nodes:
                raise CheckFailedError(
                    f"no mixed step keeps the error budget of {self._budget:g}",
                    why=f"{worst!r} is off by {drift[worst]:.2g} with every node in FP32",
                    remedy="Give a larger --budget.",
                )
            low = frozenset(products[:allowed])
            verdict = Reason.DATA_BUDGET.of()
            more = {n.name: verdict for n in problem.view.nodes if n.name not in low}
            forbidden = MappingProxyType({**more, **forbidden})
            plan, drift = self.trial(forbidden, frozenset())
            worst = max(drift, key=lambda name: drift[name])
            allowed //= 2
        return forbidden, plan, drift

    def best(
        self,
        groups: Sequence[frozenset[str]],
        forbidden: Forbidden,
        before: Plan,
        drift_before: dict[str, float],
    ) -> tuple[frozenset[str], Plan, dict[str, float]]:
        """Add groups, many at once, as long as the budget holds."""
        released: frozenset[str] = frozenset()
        plan, drift = before, drift_before
        pending = [list(groups)] if groups else []
        while pending and self.trials < MOST_TRIALS:
            candidates = pending.pop(0)
            tried = released.union(*candidates)
            tried_plan, tried_drift = self.trial(forbidden, tried)
            if all(error <= self._budget for error in tried_drift.values()):
                if tried_plan.predicted_us <= plan.predicted_us:
                    released, plan, drift = tried, tried_plan, tried_drift
            elif len(candidates) > 1:
                half = len(candidates) // 2
                pending += [candidates[:half], candidates[half:]]
        return released, plan, drift


def _reads_and_results(problem: Problem) -> Iterator[str]:
    for node in problem.view.nodes:
        if problem.is_free(node.name):
            yield from problem.low_tensors(node)


def _breaking(problem: Problem, ranges: Mapping[str, Range]) -> Iterator[tuple[str, Verdict]]:
    for node in problem.view.nodes:
        if not problem.is_free(node.name):
            continue
        for tensor in problem.low_tensors(node):
            values = ranges[tensor]
            if values.overflow_share > 0:
                verdict = Reason.DATA_OVERFLOW.of(tensor=tensor, value=values.largest, low=problem.low.value)
            elif values.lost_mass > LOST_MASS:
                verdict = Reason.DATA_UNDERFLOW.of(
                    tensor=tensor,
                    flushed_share=values.flushed_share,
                    lost_share=values.lost_mass,
                    low=problem.low.value,
                )
            else:
                continue
            yield node.name, verdict
            break


def _groups(problem: Problem) -> list[frozenset[str]]:
    """Connected groups of tainted free nodes, the most promising first."""
    tainted = {name for name in taint(problem.view, problem.classification) if problem.is_free(name)}
    gains = problem.costs.nodes
    return sorted(
        connected(problem.view, tainted),
        key=lambda group: -sum(max(gains[name].gain_us, 0.0) for name in group),
    )


def _refuse_unfinite(arrays: Feeds, what: str, why: str) -> None:
    for name, value in arrays.items():
        if np.issubdtype(value.dtype, np.floating) and np.isnan(value).any():
            raise UsageError(
                f"{what} holds NaN in {name!r}",
                why=f"a value {why}",
                remedy="Give a batch that trains in FP32.",
            )
