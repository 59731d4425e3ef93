"""Choices that cost each other something, made exactly: a minimum s-t cut.

Every choice is a yes or a no. A cost is paid *while one of some choices is yes and one of some is
no*; of all answers, a minimum cut of a network finds one that costs least. The source side is yes.
A cost between several choices takes an auxiliary vertex on either side, so that it is paid once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

_SOURCE, _SINK = 0, 1
_LARGEST_SUM = 1 << 29  # scipy's flows are int32: all finite capacities together stay well below
_FINEST = 2.0**46  # steps that all capacities together are resolved to; floats hold 2**53
_GOOD_ENOUGH = 2.0**-42  # share of all capacities that may be left undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The answer that costs least.

    Parameters
    ----------
    yes
        Choices that are yes: as few as possible among answers that cost the same.
    cost_us
        What no answer can cost less than; the answer costs this, but for rounding.
    """

    yes: frozenset[str]
    cost_us: float


class Network:
    """Choices and their costs.

    Parameters
    ----------
    choices
        Names. Whatever else is named in a cost is a no.

    Examples
    --------
    >>> network = Network(["a", "b"])
    >>> network.pay(5.0, no=("a",))
    >>> network.pay(1.0, yes=("b",))
    >>> network.require("a", "b")
    >>> sorted(network.cut().yes), network.cut().cost_us
    (['a', 'b'], 1.0)
    """

    def __init__(self, choices: Iterable[str]) -> None:
        self._vertex = {name: 2 + i for i, name in enumerate(choices)}
        self._size = 2 + len(self._vertex)
        self._tails: list[int] = []
        self._heads: list[int] = []
        self._capacities_us: list[float] = []
        self._constant_us: list[float] = []

    def pay(
        self, cost_us: float, *, yes: tuple[str, ...] | None = None, no: tuple[str, ...] | None = None
    ) -> None:
        """Charge a cost while any of `yes` is yes and any of `no` is no; None is always so."""
        if yes is not None and not (yes := tuple(name for name in yes if name in self._vertex)):
            return
        if no is not None and any(name not in self._vertex for name in no):
            no = None
        if yes is None and no is None:
            self._constant_us.append(cost_us)
        elif cost_us > 0:
            self._arc(self._tail(yes), self._head(no), cost_us)

    def gain(self, gain_us: float, choice: str) -> None:
        """Charge a choice with what it gains when it is yes; a negative gain is a cost."""
        if gain_us > 0:
            self._constant_us.append(-gain_us)
            self.pay(gain_us, no=(choice,))
        else:
            self.pay(-gain_us, yes=(choice,))

    def require(self, choice: str, other: str) -> None:
        """Let a choice be yes only together with another."""
        self.pay(math.inf, yes=(choice,), no=(other,))

    def _arc(self, tail: int, head: int, capacity_us: float) -> None:
        self._tails.append(tail)
        self._heads.append(head)
        self._capacities_us.append(capacity_us)

    def _tail(self, yes: tuple[str, ...] | None) -> int:
        if yes is None:
            return _SOURCE
        if len(yes) == 1:
            return self._vertex[yes[0]]
        self._size += 1
        for name in yes:
            self._arc(self._vertex[name], self._size - 1, math.inf)
        return self._size - 1

    def _head(self, no: tuple[str, ...] | None) -> int:
        if no is None:
            return _SINK
        if len(no) == 1:
            return self._vertex[no[0]]
        self._size += 1
        for name in no:
            self._arc(self._size - 1, self._vertex[name], math.inf)
        return self._size - 1

    def cut(self) -> Cut:
        """Find the answer that costs least.

        scipy's flows are integers of 32 bits. What rounding leaves over flows in further rounds, each
        over what capacity the rounds before left, in finer steps: until less is left than floats tell.
        """
        capacities_us = np.array(self._capacities_us, dtype=float)
        total_us = float(capacities_us[np.isfinite(capacities_us)].sum())
        if total_us == 0.0:
            return Cut(yes=frozenset(), cost_us=math.fsum(self._constant_us))
        endless_us = 2.0 * total_us
        shape = (self._size, self._size)
        left = csr_array(
            (np.minimum(capacities_us, endless_us), (np.array(self._tails), np.array(self._heads))), shape
        )
        left.sum_duplicates()
        flows_us, most_us = [], total_us
        while True:
            # A power of two keeps short binary fractions exact, and with them what costs the same.
            steps = 2.0 ** math.floor(math.log2(min(_LARGEST_SUM / most_us, _FINEST / total_us)))
            whole = left.copy()
            whole.data = np.floor(np.minimum(left.data, 2.0 * most_us) * steps).astype(np.int32)
            result = maximum_flow(whole, _SOURCE, _SINK)
            flows_us.append(float(result.flow_value / steps))
            undecided_us = left.nnz / steps
            if undecided_us <= _GOOD_ENOUGH * total_us or steps * total_us >= _FINEST / 2:
                break
            left = csr_array(left - result.flow / steps)
            left.data = np.maximum(left.data, 0.0)
            most_us = min(undecided_us, most_us)
        open_arcs = csr_array(whole - result.flow)
        open_arcs.eliminate_zeros()  # a saturated arc leads nowhere
        reached = frozenset(breadth_first_order(open_arcs, _SOURCE, return_predecessors=False).tolist())
        return Cut(
            yes=frozenset(name for name, vertex in self._vertex.items() if vertex in reached),
            cost_us=math.fsum((*self._constant_us, *flows_us)),
        )
