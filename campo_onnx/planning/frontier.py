"""The frontier of predicted time against predicted error, as plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.frontier import FrontierPoint, assignment_at, frontier
from campo_onnx.optimize.padding.choose import pad, with_padding
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import pad_limits
from campo_onnx.wording import duration

STRATEGY = "frontier"
"""Strategy name of a plan that is a point of the frontier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPlan:
    """A point of the frontier, planned when its plan is asked for: there are hundreds of points."""

    point: FrontierPoint
    problem: Problem = field(repr=False, compare=False)
    planned: Callable[[FrontierPoint], Plan] = field(repr=False, compare=False)
    fp32_us: float
    # Error of the planned step on the batches, emulated; None where that was not computed.
    emulated_error: float | None = None

    @property
    def plan(self) -> Plan:
        """Every decision and every Cast."""
        return self.planned(self.point)

    @property
    def low(self) -> Precision:
        """The low format."""
        return self.problem.low

    @property
    def speedup(self) -> float:
        """Step in FP32 over the planned one."""
        return self.fp32_us / self.point.time_us if self.point.time_us else 1.0

    @property
    def low_nodes(self) -> int:
        """Count of nodes that the plan turns low, Casts from another type among them."""
        sites, low = self.problem.sites.values(), self.point.low
        return len(low.union(site.retyped for site in sites if site.retyped and site.is_retyped(low)))

    @property
    def casts(self) -> int:
        """Count of new Casts."""
        return sum(site.new_cast(self.point.low) is not None for site in self.problem.sites.values())


def frontier_plans(
    problem: Problem, imported: Imported, options: Options, squared_errors: Mapping[Rounding, float]
) -> tuple[FrontierPlan, ...]:
    """Plan every point of the frontier, the fastest first.

    `problem`, `imported` and `options`: the step, and how it would be planned. Strategy and least gain do
    not count.
    `squared_errors`: what each rounding adds to the squared error.
    """
    imported.refuse_result()
    limits = pad_limits(imported, options)
    seen = with_padding(problem, options.target, limits) if options.pads else problem
    points = frontier(seen, squared_errors)

    @cache
    def planned(point: FrontierPoint) -> Plan:
        assignment = assignment_at(seen, point, points[0])
        plan = make_plan(problem, assignment, strategy=STRATEGY, lists=options.lists.name)
        if options.pads:
            plan = pad(problem, plan, options.target, limits, point.padded)
        return replace(plan, ranges=options.ranges)

    fp32_us = problem.predicted_us(frozenset())
    return tuple(
        FrontierPlan(point=point, problem=problem, planned=planned, fp32_us=fp32_us) for point in points
    )


def are_nested(points: Sequence[FrontierPoint]) -> bool:
    """Whether nodes only leave the low precision from each point to the next: then they have an order."""
    return all(after.low <= before.low for before, after in pairwise(points))


def envelope(plans: Iterable[FrontierPlan]) -> tuple[FrontierPlan, ...]:
    """Choose the plans of several frontiers that are cheapest of all at some price of error.

    They are the lower convex envelope, the fastest first: no plan of any frontier of at most the predicted
    error of one is predicted to be faster.
    """
    hull: list[FrontierPlan] = []
    for one in sorted(plans, key=lambda one: (one.point.time_us, one.point.squared_error)):
        if hull and one.point.squared_error >= hull[-1].point.squared_error:
            continue
        while len(hull) > 1 and not _is_below(hull[-1], hull[-2], one):
            hull.pop()
        hull.append(one)
    return tuple(hull)


def _is_below(one: FrontierPlan, before: FrontierPlan, after: FrontierPlan) -> bool:
    """Whether a plan lies below the line between two others."""
    longer_us = one.point.time_us - before.point.time_us
    whole_us = after.point.time_us - before.point.time_us
    saved = before.point.squared_error - one.point.squared_error
    return saved * whole_us > longer_us * (before.point.squared_error - after.point.squared_error)


def least_error_within(plans: Sequence[FrontierPlan], most_us: float) -> FrontierPlan:
    """Choose the plan of least predicted error whose predicted step is short enough."""
    short = [one for one in plans if one.point.time_us <= most_us]
    if not short:
        fastest = plans[0]
        raise UsageError(
            f"no plan takes at most {duration(most_us)}",
            why=f"the fastest is predicted to take {duration(fastest.point.time_us)}, with an error of "
            f"{fastest.point.error:.2g}",
            remedy="Allow more time.",
        )
    return short[-1]
