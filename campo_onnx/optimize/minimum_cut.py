"""Choices that cost each other something, made exactly: a minimum s-t cut.

Every choice is a yes or a no. A cost is paid *while one of some choices is yes and one of some is
no*; of all answers, a minimum cut of a network finds one that costs least. The source side is yes.
A cost between several choices takes an auxiliary vertex on either side, so that it is paid once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

SOURCE, SINK = 0, 1
"""Vertices of every network: the sides of yes and of no."""

_LARGEST_SUM = 1 << 29  # scipy's flows are int32: all finite capacities together stay well below
_FINEST = 2.0**46  # steps that all capacities together are resolved to; floats hold 2**53
_PASSES = 3  # that lower capacities which nothing can fill
_GOOD_ENOUGH = 2.0**-42  # share of all capacities that may be left undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The answer that costs least."""

    yes: frozenset[str]  # choices that are yes: as few as possible among answers that cost the same
    cost_us: float  # what no answer can cost less than; the answer costs this, but for rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arcs:
    """A flow network as arrays."""

    size: int  # count of vertices: the source, the sink, the choices in their order, then auxiliary ones
    tails: NDArray[np.int32]
    heads: NDArray[np.int32]
    # costs_us, errors: what each arc costs while its tail is yes and its head is no.
    costs_us: NDArray[np.float64]
    errors: NDArray[np.float64]
    constant_us: float  # what is paid in any case


class Network:
    """Choices and their costs.

    `choices`: names. Whatever else is named in a cost is a no.

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
        self._costs_us: list[float] = []
        self._errors: list[float] = []
        self._constant_us: list[float] = []

    def pay(
        self,
        cost_us: float,
        *,
        yes: tuple[str, ...] | None = None,
        no: tuple[str, ...] | None = None,
        error: float = 0.0,
    ) -> None:
        """Charge a cost, and an error, while any of `yes` is yes and any of `no` is no; None is always so."""
        if yes is not None and not (yes := tuple(name for name in yes if name in self._vertex)):
            return
        if no is not None and any(name not in self._vertex for name in no):
            no = None
        if yes is None and no is None:
            self._constant_us.append(cost_us)
        elif cost_us > 0 or error > 0:
            self._arc(self._end(yes, SOURCE), self._end(no, SINK), cost_us, error)

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

    def _arc(self, tail: int, head: int, cost_us: float, error: float = 0.0) -> None:
        self._tails.append(tail)
        self._heads.append(head)
        self._costs_us.append(cost_us)
        self._errors.append(error)

    def _end(self, choices: tuple[str, ...] | None, terminal: int) -> int:
        """The vertex where an arc begins at the source, or ends at the sink, or that of some choices."""
        if choices is None:
            return terminal
        vertices = [self._vertex[name] for name in choices]
        if len(vertices) == 1:
            return vertices[0]
        joint, self._size = self._size, self._size + 1
        for vertex in vertices:
            self._arc(*((vertex, joint) if terminal == SOURCE else (joint, vertex)), math.inf)
        return joint

    def arcs(self) -> "Arcs":
        """Give what was charged so far as arrays."""
        return Arcs(
            size=self._size,
            tails=np.array(self._tails, dtype=np.int32),
            heads=np.array(self._heads, dtype=np.int32),
            costs_us=np.array(self._costs_us, dtype=float),
            errors=np.array(self._errors, dtype=float),
            constant_us=math.fsum(self._constant_us),
        )

    def cut(self) -> Cut:
        """Find the answer that costs least; errors cost nothing."""
        arcs = self.arcs()
        flow_us, reached = least_cut(arcs.size, arcs.tails, arcs.heads, arcs.costs_us)
        return Cut(
            yes=frozenset(name for name, vertex in self._vertex.items() if reached[vertex]),
            cost_us=arcs.constant_us + flow_us,
        )


def least_cut(
    size: int, tails: NDArray[np.int32], heads: NDArray[np.int32], costs_us: NDArray[np.float64]
) -> tuple[float, NDArray[np.bool_]]:
    """Cut :data:`SOURCE` from :data:`SINK` at the least cost.

    scipy's flows are integers of 32 bits. What rounding leaves over flows in further rounds, each over what
    capacity the rounds before left, in finer steps: until less is left than floats tell.

    Gives what the cut costs, and which vertices are on the side of the source: as few as possible.
    """
    if not len(tails):
        return 0.0, np.arange(size) == SOURCE
    shape = (size, size)
    left = csr_array((costs_us, (tails, heads)), shape)
    left.sum_duplicates()
    never_full = left.copy()
    rows = np.repeat(np.arange(size), np.diff(left.indptr))
    for _ in range(_PASSES):
        # No more flows into a vertex than out of it. Twice that leaves the arc open, whatever flows.
        into = np.bincount(left.indices, left.data, size)
        out_of = np.bincount(rows, left.data, size)
        into[SOURCE] = out_of[SINK] = math.inf
        np.minimum(left.data, 2.0 * np.minimum(into[rows], out_of[left.indices]), out=left.data)
    never_full.data = (never_full.data > left.data).astype(np.int32)
    total_us = float(left.data[np.isfinite(left.data)].sum())
    flows_us, most_us = [0.0], total_us
    left.data = np.minimum(left.data, 2.0 * total_us)  # what nothing limits
    open_arcs = never_full
    while most_us > 0.0:
        # A power of two keeps short binary fractions exact, and with them what costs the same.
        steps = 2.0 ** math.floor(math.log2(min(_LARGEST_SUM / most_us, _FINEST / total_us)))
        whole = left.copy()
        whole.data = np.floor(np.minimum(left.data, 2.0 * most_us) * steps).astype(np.int32)
        result = maximum_flow(whole, SOURCE, SINK)
        flows_us.append(float(result.flow_value / steps))
        undecided_us = left.nnz / steps
        if undecided_us <= _GOOD_ENOUGH * total_us or steps * total_us >= _FINEST / 2:
            open_arcs = csr_array(whole - result.flow + never_full)
            break
        left = csr_array(left - result.flow / steps)
        left.data = np.maximum(left.data, 0.0)
        most_us = min(undecided_us, most_us)
    open_arcs.eliminate_zeros()  # a saturated arc leads nowhere
    reached = np.zeros(size, dtype=bool)
    reached[breadth_first_order(open_arcs, SOURCE, return_predecessors=False)] = True
    return math.fsum(flows_us), reached
