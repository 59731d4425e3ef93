"""Minimum cuts at many prices of a second cost, each over the choices that its price can still change.

What an answer costs, time + price * error, is linear in the price. Let S be a set of choices such that no
subset of it costs less at two prices: then none does at any price between them. As the cost is submodular,
some cheapest answer at each of these prices has all of S as yes. In the same way all that is outside of a set
T can be no, if no superset of T costs less at either price. Where answers at the two prices are nested, S is
the smaller one and T the larger one in nearly all cases; where they are not, a few cuts find such sets.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from campo_onnx.optimize.minimum_cut import SINK, SOURCE, Arcs, least_cut

Choices = NDArray[np.bool_]
"""Whether each choice is yes, in their order."""

_OPEN = -1


class PricedCut(NamedTuple):
    """The answer that costs least at a price."""

    price_us: float
    yes: Choices
    # cost_us, error: what the answer costs, and its error.
    cost_us: float
    error: float
    bound_us: float  # what no answer can cost less than at this price, error included


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedNetwork:
    """A network some of whose choices are settled."""

    arcs: Arcs
    constant_error: float = 0.0
    # Index of the choice that each vertex is; -1 for source, sink and auxiliary vertices.
    choice: NDArray[np.intp]
    # least, most: choices that are yes, and those that may be.
    least: Choices
    most: Choices

    @classmethod
    def of(cls, arcs: Arcs, choices: int) -> "PricedNetwork":
        """Settle none of the choices."""
        choice = np.arange(arcs.size) - 2
        choice[:2] = choice[2 + choices :] = -1
        none = np.zeros(choices, dtype=bool)
        return cls(arcs=arcs, choice=choice, least=none, most=~none)

    def cut(self, price_us: float) -> PricedCut:
        """Find the answer that costs least at a price of error; at an infinite one it has no error."""
        arcs = self.arcs
        priced = arcs.errors > 0.0
        costs_us = arcs.costs_us.copy()
        costs_us[priced] += price_us * arcs.errors[priced]
        flow_us, reached = least_cut(arcs.size, arcs.tails, arcs.heads, costs_us)
        paid = reached[arcs.tails] & ~reached[arcs.heads]
        yes = self.least.copy()
        yes[self.choice[reached & (self.choice >= 0)]] = True
        constant_us = arcs.constant_us + (price_us * self.constant_error if self.constant_error else 0.0)
        return PricedCut(
            price_us=price_us,
            yes=yes,
            cost_us=arcs.constant_us + float(arcs.costs_us[paid].sum()),
            error=self.constant_error + float(arcs.errors[paid].sum()),
            bound_us=constant_us + flow_us,
        )

    def between(self, one: PricedCut, other: PricedCut) -> "PricedNetwork":
        """Settle what is settled at every price between those of two answers of this network."""
        ends = (one, other)
        return self._within(
            _settled(one.yes & other.yes, self.least, ends, self._cheapest_subset),
            _settled(one.yes | other.yes, self.most, ends, self._cheapest_superset),
        )

    def _cheapest_subset(self, yes: Choices, price_us: float) -> Choices:
        return self._within(self.least, yes).cut(price_us).yes

    def _cheapest_superset(self, yes: Choices, price_us: float) -> Choices:
        larger = self._within(yes, self.most)
        return (larger._errors_alone.cut(1.0) if price_us == math.inf else larger.cut(price_us)).yes

    @property
    def _errors_alone(self) -> "PricedNetwork":
        endless = np.isinf(self.arcs.costs_us)
        return replace(self, arcs=replace(self.arcs, costs_us=np.where(endless, math.inf, 0.0)))

    def _within(self, least: Choices, most: Choices) -> "PricedNetwork":
        """Settle all of `least` as yes, and all but `most` as no."""
        arcs = self.arcs
        vertex = np.full(arcs.size, _OPEN)
        vertex[[SOURCE, SINK]] = SOURCE, SINK
        chosen = np.flatnonzero(self.choice >= 0)
        vertex[chosen[least[self.choice[chosen]]]] = SOURCE
        vertex[chosen[~most[self.choice[chosen]]]] = SINK
        endless = np.isinf(arcs.costs_us)
        vertex[arcs.heads[endless & (vertex[arcs.tails] == SOURCE)]] = SOURCE
        vertex[arcs.tails[endless & (vertex[arcs.heads] == SINK)]] = SINK
        is_open = vertex == _OPEN
        size = 2 + int(is_open.sum())
        vertex[is_open] = np.arange(2, size)
        tails, heads = vertex[arcs.tails], vertex[arcs.heads]
        always = (tails == SOURCE) & (heads == SINK)
        sometimes = ~always & (tails != SINK) & (heads != SOURCE)
        return PricedNetwork(
            arcs=Arcs(
                size=size,
                tails=tails[sometimes].astype(np.int32),
                heads=heads[sometimes].astype(np.int32),
                costs_us=arcs.costs_us[sometimes],
                errors=arcs.errors[sometimes],
                constant_us=arcs.constant_us + float(arcs.costs_us[always].sum()),
            ),
            constant_error=self.constant_error + float(arcs.errors[always].sum()),
            choice=np.concatenate([[-1, -1], self.choice[is_open]]),
            least=least,
            most=most,
        )


def _settled(
    yes: Choices, fixed: Choices, ends: Sequence[PricedCut], improved: Callable[[Choices, float], Choices]
) -> Choices:
    """Change a set of choices until no cut improves it at either end; `fixed` is settled already."""
    due = list(ends)
    while due:
        end = due.pop()
        if np.array_equal(yes, end.yes) or np.array_equal(yes, fixed):
            continue
        better = improved(yes, end.price_us)
        if not np.array_equal(better, yes):
            yes, due = better, [other for other in ends if other is not end]
    return yes
