"""The promise, checked on the device: what is returned is measured faster than FP32, or is FP32.

Where a plan does not win it can be repaired: plan again with better costs, and measure again. First
every node is timed on the device in both precisions; after that, what the step itself took tells by
how much low precision and its casts were underestimated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.bench.subject import Subject
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.costs.choose import MEASURED, costs_for
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import ModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.problem import Problem, Verdict
from campo_onnx.pipeline import COST_AWARE, Optimized, Options, carry_out, decide, repriced, stay_fp32

Measure = Callable[[Sequence[Subject]], BenchResult]
"""Times training steps against each other; the first graph is what the others are held against."""

FP32 = "fp32"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One plan, carried out and measured beside FP32.

    Parameters
    ----------
    optimized
        The plan and its graph.
    result
        What was measured: FP32 first, then the graph.
    """

    optimized: Optimized
    result: BenchResult

    @property
    def row(self) -> BenchRow:
        """What was measured of the graph."""
        return self.result.rows[1]

    @property
    def wins(self) -> bool:
        """Whether it is faster than FP32 beyond doubt."""
        return self.row.verdict is Outcome.FASTER


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was tried, and what is to be used.

    Parameters
    ----------
    attempts
        Plans that were measured, in order; none where the first plan changes nothing.
    returned
        The attempt that won, or the graph in FP32.
    """

    attempts: tuple[Attempt, ...]
    returned: Optimized

    @property
    def won(self) -> bool:
        """Whether a mixed graph is returned."""
        return bool(self.returned.plan.low_nodes)


def verify(optimized: Optimized, options: Options, measure: Measure, *, repairs: int = 0) -> Verification:
    """Measure a result against the graph it was made from.

    Parameters
    ----------
    optimized
        The result.
    options
        What it was planned with.
    measure
        How to measure: :func:`campo_onnx.bench.bench.bench` on the plan's device.
    repairs
        How often to plan again when it does not win.

    Raises
    ------
    ModelError
        If the FP32 graph itself does not run.
    campo_onnx.errors.CampoError
        For what goes wrong while nodes are timed for a repair.
    """
    if not optimized.plan.low_nodes:
        return Verification(attempts=(), returned=optimized)
    attempts = [_attempt(optimized, options, measure)]
    if options.strategy not in COST_AWARE:
        repairs = 0  # other costs would change nothing
    while not attempts[-1].wins and len(attempts) <= repairs:
        problem, plan = _replanned(attempts[-1], options)
        if not plan.low_nodes or any(_is_same(plan, tried.optimized.plan) for tried in attempts):
            break
        attempts.append(_attempt(carry_out(plan, problem, optimized.imported), options, measure))
    last = attempts[-1]
    return Verification(
        attempts=tuple(attempts), returned=last.optimized if last.wins else _in_fp32(last, options)
    )


def scaled_costs(costs: CostTable, plan: Plan, result: BenchResult) -> CostTable:
    """Make low precision and casts as much dearer as the measured step says they are.

    What the plan left in FP32 is believed; the difference between the measured and the predicted
    mixed step, both as multiples of the FP32 step, is put on its low nodes, casts and pads.

    Parameters
    ----------
    costs
        What the plan was made with.
    plan
        The plan, with at least one low node.
    result
        What was measured: FP32 first, then the planned graph.
    """
    fp32, mixed = (row.step_us for row in result.rows[:2])
    if fp32 is None or mixed is None:
        return costs
    low = plan.low_nodes
    left_us = sum(d.fp32_us for d in plan.decisions if d.node not in low)
    measured_us = mixed.median / fp32.median * plan.fp32_us
    factor = max(1.0, (measured_us - left_us) / max(plan.predicted_us - left_us, 1e-9))
    nodes = {name: replace(cost, low_us=cost.low_us * factor) for name, cost in costs.nodes.items()}
    cast = CastModel(r_us=costs.cast.r_us * factor, c_i_us=costs.cast.c_i_us * factor)
    return replace(costs, nodes=nodes, cast=cast)


def _attempt(optimized: Optimized, options: Options, measure: Measure) -> Attempt:
    given = optimized.imported
    mixed = replace(import_model(optimized.model, options.dims), folder=given.folder)
    result = measure((Subject(name=FP32, imported=given), Subject(name=optimized.plan.low, imported=mixed)))
    if result.interrupted:
        raise KeyboardInterrupt  # half a measurement decides nothing, and nothing is written
    if result.rows[0].verdict is Outcome.FAILED:
        raise ModelError(
            "the FP32 graph does not run, so nothing can be verified", why=result.rows[0].failure
        )
    return Attempt(optimized=optimized, result=result)


def _replanned(attempt: Attempt, options: Options) -> tuple[Problem, Plan]:
    """Plan again after an attempt that did not win, from better costs."""
    problem, plan = attempt.optimized.problem, attempt.optimized.plan
    if problem.costs.source != MEASURED:
        costs = costs_for(
            problem.view, problem.ports, options.device, options.low, CostSource.MEASURE, options.evidence
        )
        problem = repriced(problem, costs)
        plan = decide(problem, attempt.optimized.imported, options)
        if not _is_same(plan, attempt.optimized.plan):
            return problem, plan
    problem = repriced(problem, scaled_costs(problem.costs, plan, attempt.result))
    return problem, decide(problem, attempt.optimized.imported, options)


def _is_same(plan: Plan, other: Plan) -> bool:
    return (plan.low_nodes, plan.pads) == (other.low_nodes, other.pads)


def _in_fp32(attempt: Attempt, options: Options) -> Optimized:
    fp32, mixed = attempt.result.rows[:2]
    if fp32.step_us is None or mixed.step_us is None:
        reason = f"in {options.low.value} the step does not run: {mixed.failure}"
    else:
        reason = (
            f"measured: the step takes {mixed.step_us.median / 1000:.3g} ms in {options.low.value}, "
            f"{fp32.step_us.median / 1000:.3g} ms in FP32 ({mixed.verdict.value})"
        )
    problem, imported = attempt.optimized.problem, attempt.optimized.imported
    plan = stay_fp32(problem, options, Verdict(decided_by="verify", reason=reason))
    return carry_out(plan, problem, imported)
