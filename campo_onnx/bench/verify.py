"""Plans measured on the device: one plan against FP32, or every strategy's plan side by side.

:func:`verify` returns the planned graph only if its step is measured faster than the FP32 step, and the
FP32 graph otherwise. A file that is low already takes the place of FP32. A plan that is not faster can be
repaired: plan again with better costs, and measure again. First every node is timed on the device in both
precisions; after that the measured step shows by how much the costs of low precision and its casts were
underestimated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.costs.choose import costs_for
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import ModelError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.comparison import Comparison
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, apply, decide, problem_of, stays

Measure = Callable[[Sequence[Graph]], BenchResult]
"""Times training steps in alternation; the others are compared with the first."""

FP32, AS_GIVEN = "fp32", "as given"
"""Names of what plans are measured against."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One plan, and its graph measured against FP32, or against the file where that is low already."""

    optimized: Optimized
    result: BenchResult  # the measurement: the graph that is measured against, then the planned one

    @property
    def row(self) -> BenchRow:
        """The planned graph's row."""
        return self.result.rows[1]

    @property
    def wins(self) -> bool:
        """Whether the whole confidence interval of its speed-up is on the faster side."""
        return self.row.verdict is Outcome.FASTER


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All attempts, and the graph to use."""

    attempts: tuple[Attempt, ...]  # in order; none where the first plan changes nothing
    returned: Optimized  # the attempt that was faster, or the graph that it was measured against

    @property
    def won(self) -> bool:
        """Whether a planned graph is returned."""
        return not self.returned.is_unchanged


def verify(optimized: Optimized, options: Options, measure: Measure, *, repairs: int = 0) -> Verification:
    """Measure a result against the FP32 graph it was made from, or against a file that was low already.

    A file in which rules raise nodes, since their values do not fit, is no answer: then FP32 is. ModelError
    says that the graph that is measured against does not run.
    """
    if optimized.is_unchanged:
        return Verification(attempts=(), returned=optimized)
    attempts = [_attempt(optimized, options, measure)]
    if not options.chosen_strategy.is_cost_aware:
        repairs = 0  # other costs would change nothing
    while not attempts[-1].wins and len(attempts) <= repairs:
        problem, plan = _replanned(attempts[-1], options)
        again = apply(plan, problem, optimized.imported)
        if again.is_unchanged or _key(plan) in {_key(tried.optimized.plan) for tried in attempts}:
            break
        attempts.append(_attempt(again, options, measure))
    last = attempts[-1]
    return Verification(
        attempts=tuple(attempts), returned=last.optimized if last.wins else _unchanged(last, options)
    )


def scaled_costs(costs: CostTable, plan: Plan, result: BenchResult) -> CostTable:
    """Scale the costs of low precision and casts up to what the measured step implies.

    Costs of nodes that the plan left in FP32 stay. The difference between the measured and the
    predicted mixed step, both as multiples of the FP32 step, is attributed to low nodes, casts and
    pads, in proportion to their predicted times.
    """
    fp32, mixed = (row.step_us for row in result.rows[:2])
    if fp32 is None or mixed is None:
        return costs
    low = plan.low_nodes
    fp32_part_us = sum(d.fp32_us for d in plan.decisions if d.node not in low)
    measured_us = mixed.median / fp32.median * plan.fp32_us
    factor = max(1.0, (measured_us - fp32_part_us) / max(plan.predicted_us - fp32_part_us, 1e-9))
    if factor == 1.0:
        return costs
    nodes = {
        name: replace(cost, low_us=cost.low_us * factor, source=CostSource.SCALED)
        for name, cost in costs.nodes.items()
    }
    return replace(costs, source=CostSource.SCALED, nodes=nodes, cast=costs.cast.scaled(factor))


def _attempt(optimized: Optimized, options: Options, measure: Measure) -> Attempt:
    plan, imported = optimized.plan, optimized.imported
    reference = Graph(name=FP32, imported=imported.given or imported)
    if optimized.problem.starts_low and imported.as_given is not None:
        reference = Graph(name=AS_GIVEN, imported=imported.as_given)
    planned = replace(import_model(optimized.model, options.dims), folder=reference.imported.folder)
    name = plan.low.value if plan.low_nodes else FP32
    result = measure((reference, Graph(name=name, imported=planned)))
    if result.interrupted:
        raise KeyboardInterrupt  # an incomplete measurement decides nothing, and nothing is written
    if result.rows[0].verdict is Outcome.FAILED:
        raise ModelError(
            f"the graph {reference.name} does not run, so nothing can be verified", why=result.rows[0].failure
        )
    return Attempt(optimized=optimized, result=result)


def _replanned(attempt: Attempt, options: Options) -> tuple[Problem, Plan]:
    """Plan again, with better costs, after an attempt that was not faster."""
    problem, plan = attempt.optimized.problem, attempt.optimized.plan
    if problem.costs.source not in (CostSource.MEASURE, CostSource.SCALED):
        costs = costs_for(
            problem.view, problem.ports, options.target, options.low, CostSource.MEASURE, options.evidence
        )
        problem = replace(problem, costs=costs)
        plan = decide(problem, attempt.optimized.imported, options)
        if _key(plan) != _key(attempt.optimized.plan):
            return problem, plan
    if problem.starts_low:  # both steps have low nodes, so that their times do not tell what those cost
        return problem, plan
    problem = replace(problem, costs=scaled_costs(problem.costs, plan, attempt.result))
    return problem, decide(problem, attempt.optimized.imported, options)


def _unchanged(attempt: Attempt, options: Options) -> Optimized:
    problem, imported = attempt.optimized.problem, attempt.optimized.imported
    verdict = _verdict(attempt)
    if imported.given is not None and not problem.starts_low:
        imported = imported.given
        # What data says of nodes is said of those of the other form.
        problem = problem_of(imported, replace(options, forbidden={}, released=frozenset()))
    # What was measured does not change what is proven of the predicted steps.
    bound_us = attempt.optimized.plan.lower_bound_us
    plan = replace(stays(problem, options, problem.low_unchanged, verdict), lower_bound_us=bound_us)
    return apply(plan, problem, imported)


def _verdict(attempt: Attempt) -> Verdict:
    reference, planned = attempt.result.rows[:2]
    if reference.step_us is None or planned.step_us is None:
        return Reason.VERIFIED_FAILING.of(low=planned.name, failure=planned.failure)
    reference_ms, planned_ms = reference.step_us.median / 1000, planned.step_us.median / 1000
    outcome = planned.verdict.value
    if attempt.optimized.problem.starts_low:
        return Reason.VERIFIED_AS_GIVEN.of(given_ms=reference_ms, planned_ms=planned_ms, outcome=outcome)
    return Reason.VERIFIED_SLOWER.of(
        low=planned.name, low_ms=planned_ms, fp32_ms=reference_ms, outcome=outcome
    )


def measured(comparison: Comparison, measure: Measure, dims: Mapping[str, int] | None = None) -> Comparison:
    """Measure the step of every strategy; strategies with equal plans share one measurement."""
    plans = {_key(row.plan): row.plan for row in reversed(comparison.rows)}
    unchanged = (frozenset[str](), ())  # what the strategy fp32 plans
    names = {key: f"{plan.strategy} {plan.lists}" for key, plan in plans.items()}
    graphs = [Graph(name=names[unchanged], imported=comparison.imported)]
    graphs += [
        Graph(name=names[key], imported=_mixed(comparison.imported, plan, dims))
        for key, plan in reversed(plans.items())
        if key != unchanged
    ]
    result = measure(graphs)
    row_of = {row.name: row for row in result.rows}
    rows = []
    for row in comparison.rows:
        key = _key(row.plan)
        timed = row_of[names[key]]
        ratio = timed.speedup
        speedup = None if ratio is None else ratio.median
        if key == unchanged and timed.step_us is not None:
            speedup = 1.0
        rows.append(
            replace(
                row,
                measured_us=None if timed.step_us is None else timed.step_us.median,
                measured_speedup=speedup,
                measured_bounds=None if ratio is None else (ratio.low, ratio.high),
                verdict=timed.verdict.value,
            )
        )
    return replace(comparison, rows=tuple(rows), interrupted=result.interrupted)


def _key(plan: Plan) -> tuple[object, ...]:
    """A key that is equal for plans of one graph that decide alike."""
    return plan.low_nodes, plan.pads


def _mixed(imported: Imported, plan: Plan, dims: Mapping[str, int] | None) -> Imported:
    return replace(import_model(rewrite(imported, plan), dims), folder=imported.folder)
