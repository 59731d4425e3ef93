"""Every assignment on the convex frontier of predicted time against predicted error.

Time + price * error is a minimum cut at any price, as every rounding is there while one of some nodes is low
and another is not (:class:`campo_onnx.optimize.roundings.Rounding`). Its minimum over all assignments is a
concave, piecewise linear function of the price; each piece is a point of the frontier, and all are found with
at most two cuts each (Eisner and Severance, 1976): where two neighbouring pieces meet, a cut either finds a
piece below, or proves that nothing lies below.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.roundings import Rounding
from campo_onnx.optimize.strategies.optimal import Charge, answer, cheapest, free_nodes, padded_nodes

_SAME = 1e-9
"""Share of the FP32 step by which two answers differ if they differ at all: what sums of floats hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One assignment that nothing beats at some price of error.

    Parameters
    ----------
    squared_error
        Predicted error, squared: the sum over all roundings.
    bound_us
        What no assignment of at most this error can go below, as the cuts beside it prove. It meets
        `time_us`, except where the session casts all weights at once.
    least_price_us, most_price_us
        Prices of one unit of squared error between which this assignment costs least.
    """

    low: frozenset[str]
    padded: frozenset[str]
    time_us: float
    squared_error: float
    bound_us: float = -math.inf
    least_price_us: float = 0.0
    most_price_us: float = math.inf

    @property
    def error(self) -> float:
        """Predicted error: relative, the root of all squares."""
        return math.sqrt(self.squared_error)


def frontier(
    problem: Problem,
    squared_errors: Mapping[Rounding, float],
    tell: Callable[[int], None] = lambda points: None,
) -> tuple[FrontierPoint, ...]:
    """Find every vertex of the convex frontier, the fastest first.

    Parameters
    ----------
    squared_errors
        What each rounding adds to the squared error, from 0 up. Nodes that bring one of infinite error stay
        FP32.

    Raises
    ------
    ValueError
        If an error is negative or no number.
    """
    if any(not error >= 0.0 for error in squared_errors.values()):
        raise ValueError("a squared error is negative, or NaN")
    search = _Search(problem, squared_errors)
    first = search.answer(0.0)
    points, ahead = [first], [search.answer(math.inf)]
    cuts = {0.0: first.bound_us}
    while ahead:
        before, after = points[-1], ahead[-1]
        if not after.squared_error < before.squared_error:
            ahead.pop()
            continue
        longer_us = search.steered_us(after) - search.steered_us(before)
        if longer_us <= search.tolerance_us:  # as fast, with less error
            points[-1] = ahead.pop()
            continue
        price_us = longer_us / (before.squared_error - after.squared_error)
        between = search.answer(price_us)
        line_us = search.steered_us(before) + price_us * before.squared_error
        if search.steered_us(between) + price_us * between.squared_error < line_us - search.tolerance_us:
            ahead.append(between)
        else:
            cuts[price_us] = between.bound_us
            points.append(ahead.pop())
        tell(len(points) + len(ahead))
    prices_us = [0.0, *(_price_us(*pair) for pair in pairwise(points)), math.inf]
    return tuple(
        replace(
            point,
            bound_us=max(bound_us - price_us * point.squared_error for price_us, bound_us in cuts.items()),
            least_price_us=least_us,
            most_price_us=most_us,
        )
        for point, least_us, most_us in zip(points, prices_us[:-1], prices_us[1:], strict=True)
    )


def assignment_at(problem: Problem, point: FrontierPoint, fastest: FrontierPoint) -> Assignment:
    """State a point as an answer to the problem; its lower bound holds for plans of any error."""
    if point == fastest:
        return answer(problem, point.low, point.padded, lower_bound_us=fastest.bound_us)
    return answer(
        problem,
        point.low,
        point.padded,
        lower_bound_us=fastest.bound_us,
        reasons=(Reason.FRONTIER_LOW, Reason.FRONTIER_FP32),
        error=point.error,
    )


def _price_us(before: FrontierPoint, after: FrontierPoint) -> float:
    """Find the price at which two neighbours cost the same."""
    return (after.time_us - before.time_us) / (before.squared_error - after.squared_error)


class _Search:
    """Cuts at prices."""

    def __init__(self, problem: Problem, squared_errors: Mapping[Rounding, float]) -> None:
        self._problem = problem
        self._errors = {rounding: e for rounding, e in squared_errors.items() if 0.0 < e < math.inf}
        broken = {name for rounding, e in squared_errors.items() if e == math.inf for name in rounding.nodes}
        self._free = [name for name in free_nodes(problem) if name not in broken]
        self._threshold_us = 0.0 if problem.padding is None else problem.padding.threshold_us
        self._fp32_us = problem.predicted_us(frozenset())
        self.tolerance_us = _SAME * (1.0 + self._fp32_us)

    def steered_us(self, point: FrontierPoint) -> float:
        """Time of a point, and the thresholds of padding, which steer the choice and take no time."""
        return point.time_us + self._threshold_us * len(point.padded)

    def answer(self, price_us: float) -> FrontierPoint:
        """Find what costs least at a price; `bound_us` is what nothing costs less than, errors included."""
        # What costs more than the FP32 step is not bought: no charge needs to be larger than twice that.
        most_us = 2.0 * self._fp32_us + 1.0
        charges = [
            Charge(min(price_us * e, most_us), rounding.nodes, rounding.unless)
            for rounding, e in self._errors.items()
        ]
        cut, bound_us = cheapest(self._problem, self._free, charges if price_us else ())
        padding = self._problem.padding
        low, padded = cut.yes.intersection(self._free), padded_nodes(cut, padding)
        return FrontierPoint(
            low=low,
            padded=padded,
            time_us=self._problem.predicted_us(low) + (padding.cost_us(padded) if padding else 0.0),
            squared_error=math.fsum(e for rounding, e in self._errors.items() if rounding.is_there(low)),
            bound_us=bound_us - self._threshold_us * len(padded),
        )
