"""Every assignment on the convex frontier of predicted time against predicted error.

Time + price * error is a minimum cut at any price, as every rounding is there while one of some nodes is low
and another is not (:class:`campo_onnx.optimize.roundings.Rounding`). Its minimum over all assignments is a
concave, piecewise linear function of the price; each piece is a point of the frontier, and all are found with
at most two cuts each (Eisner and Severance, 1976): where two neighbouring pieces meet, a cut either finds a
piece below, or proves that nothing lies below. What is settled on either side of a price is not cut again
(:mod:`campo_onnx.optimize.parametric_cut`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from campo_onnx.optimize.parametric_cut import PricedCut, PricedNetwork
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.roundings import Rounding
from campo_onnx.optimize.strategies.optimal import answer, free_nodes, networks, uncharged_us

_SAME = 1e-9
"""Share of the FP32 step by which two answers differ if they differ at all: what sums of floats hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One assignment that nothing beats at some price of error."""

    low: frozenset[str]
    padded: frozenset[str]
    time_us: float
    squared_error: float  # predicted error, squared: the sum over all roundings
    # What no assignment of at most this error can go below, as the cuts beside it prove. It meets `time_us`,
    # except where the session casts all weights at once.
    bound_us: float = -math.inf
    # Price of one unit of squared error from which on this assignment costs least, up to that of the next.
    least_price_us: float = 0.0

    @property
    def error(self) -> float:
        """Predicted error: relative, the root of all squares."""
        return math.sqrt(self.squared_error)


def frontier(problem: Problem, squared_errors: Mapping[Rounding, float]) -> tuple[FrontierPoint, ...]:
    """Find every vertex of the convex frontier, the fastest first.

    `squared_errors`: what each rounding adds to the squared error, from 0 up. Nodes that bring one of
    infinite error stay FP32.
    """
    if any(not error >= 0.0 for error in squared_errors.values()):
        raise ValueError("a squared error is negative, or NaN")
    search = _Search(problem, squared_errors)
    first = search.answer(0.0, search.networks)
    ahead = [search.gap(first, search.answer(math.inf, search.networks), search.networks)]
    points, bounds_us = [first], {0.0: first.point.bound_us}
    while ahead:
        before, (left, after, open_networks) = points[-1], ahead[-1]
        saved = before.point.squared_error - after.point.squared_error
        if not saved > 0.0:
            ahead.pop()
            continue
        longer_us = after.steered_us - before.steered_us
        if longer_us <= search.tolerance_us:  # as fast, with less error
            points[-1] = ahead.pop().after
            continue
        price_us = longer_us / saved
        between = search.answer(price_us, open_networks)
        if between.at(price_us) < before.at(price_us) - search.tolerance_us:
            ahead[-1] = search.gap(between, after, open_networks)
            ahead.append(search.gap(left, between, open_networks))
        else:
            bounds_us[price_us] = between.point.bound_us
            points.append(ahead.pop().after)
    return _with_prices([one.point for one in points], bounds_us)


def _with_prices(points: list[FrontierPoint], bounds_us: Mapping[float, float]) -> tuple[FrontierPoint, ...]:
    """Add from which price on each point costs least, and what is proved at these."""
    at_us, proved_us = np.array([*bounds_us]), np.array([*bounds_us.values()])
    prices_us = [0.0, *(_price_us(*pair) for pair in pairwise(points))]
    return tuple(
        replace(
            point, bound_us=float((proved_us - at_us * point.squared_error).max()), least_price_us=least_us
        )
        for point, least_us in zip(points, prices_us, strict=True)
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


class _Candidate(NamedTuple):
    """A point, the cuts it comes from, and its time with the thresholds of padding that steer the choice."""

    point: FrontierPoint
    cuts: tuple[PricedCut, ...]
    steered_us: float

    def at(self, price_us: float) -> float:
        """Time and priced error together."""
        return self.steered_us + price_us * self.point.squared_error


class _Gap(NamedTuple):
    """Two answers, and networks in which all is settled that is so at every price between theirs."""

    before: _Candidate
    after: _Candidate
    networks: tuple[PricedNetwork, ...]


class _Search:
    """Cuts at prices."""

    def __init__(self, problem: Problem, squared_errors: Mapping[Rounding, float]) -> None:
        self._problem, padding = problem, problem.padding
        broken = {name for rounding, e in squared_errors.items() if e == math.inf for name in rounding.nodes}
        self._free = [name for name in free_nodes(problem) if name not in broken]
        self._products = [] if padding is None else [*padding.gains_us]
        self._threshold_us = 0.0 if padding is None else padding.threshold_us
        ways = networks(problem, self._free)
        for network in ways.values():
            for one, error in squared_errors.items():
                if 0.0 < error < math.inf:
                    network.pay(
                        0.0, yes=one.nodes, no=None if one.unless is None else (one.unless,), error=error
                    )
        choices = len(self._free) + len(self._products)
        self._at_once = tuple(ways)
        self.networks = tuple(PricedNetwork.of(network.arcs(), choices) for network in ways.values())
        self.tolerance_us = _SAME * (1.0 + problem.predicted_us(frozenset()))

    def gap(self, before: _Candidate, after: _Candidate, within: tuple[PricedNetwork, ...]) -> _Gap:
        """Settle what is settled between the prices of two answers."""
        cuts = zip(within, before.cuts, after.cuts, strict=True)
        return _Gap(before, after, tuple(network.between(*ends) for network, *ends in cuts))

    def answer(self, price_us: float, within: tuple[PricedNetwork, ...]) -> _Candidate:
        """Find what costs least at a price; `bound_us` is what nothing costs less than, errors included.

        Where the session may cast all weights at once, each answer is charged with what it then does.
        """
        cuts = tuple(network.cut(price_us) for network in within)
        candidates = [self._candidate(*way, cuts) for way in zip(self._at_once, cuts, strict=True)]
        best = min(
            candidates, key=lambda one: one.at(price_us) if one.point.squared_error else one.steered_us
        )
        bound_us = min(cut.bound_us for cut in cuts) - self._threshold_us * len(best.point.padded)
        return best._replace(point=replace(best.point, bound_us=bound_us))

    def _candidate(self, at_once: bool, cut: PricedCut, cuts: tuple[PricedCut, ...]) -> _Candidate:
        low = frozenset(compress(self._free, cut.yes))
        padded = frozenset(compress(self._products, cut.yes[len(self._free) :]))
        steered_us = cut.cost_us + uncharged_us(self._problem, low, at_once=at_once)
        time_us = steered_us - self._threshold_us * len(padded)
        return _Candidate(
            FrontierPoint(low=low, padded=padded, time_us=time_us, squared_error=cut.error), cuts, steered_us
        )
