"""From a strategy's answer to a plan: every change of the graph, with its price."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from campo_onnx.ir.view import OpNode
from campo_onnx.optimize.casts import CastSite, PossibleCast
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW
from campo_onnx.optimize.plan.changes import Changes
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem

_FEW = 4  # names that a tuple finds as fast as a set, in a fifth of the memory


def make_plan(problem: Problem, assignment: Assignment, *, strategy: str, lists: str) -> Plan:
    """Turn a strategy's answer into a plan."""
    return _Planning(problem, assignment).plan(strategy, lists)


class _Planning:
    """One run of :func:`make_plan`."""

    def __init__(self, problem: Problem, assignment: Assignment) -> None:
        self.problem, self.assignment = problem, assignment
        self.low = assignment.low
        node_us = {name: cost.fp32_us for name, cost in problem.costs.nodes.items()}
        self.changes = Changes(
            problem.view, problem.ports, problem.low, problem.sites, node_us, assignment.low
        )
        self._casts_of: dict[str, tuple[_CountedCast, ...]] = {}
        self._share_us = _shares_us(problem, self.low)

    def plan(self, strategy: str, lists: str) -> Plan:
        problem, changes, nodes = self.problem, self.changes, self.problem.view.nodes
        casts = tuple(
            replace(cast, cast_us=self._share_us.get(cast.tensor, cast.cast_us)) for cast in changes.casts
        )
        cast_us = {cast.tensor: cast.cast_us for cast in casts}
        return Plan(
            strategy=strategy,
            lists=lists,
            device=problem.costs.target.name,
            captured=problem.costs.target.captures,
            runtime=problem.costs.target.runtime.name,
            source=problem.costs.source,
            low=problem.low,
            fp32_us=problem.predicted_us(frozenset()),
            predicted_us=problem.predicted_us(self.low),
            lower_bound_us=self.assignment.lower_bound_us,
            unassigned_us=math.fsum(
                cost.fp32_us for name, cost in problem.costs.nodes.items() if name not in problem.view.node
            ),
            digest=problem.digest,
            casts=casts,
            reused=changes.reused,
            dropped=changes.dropped,
            constants=changes.constants,
            decisions=tuple(self._decision(node, cast_us) for node in nodes),
        )

    def _decision(self, node: OpNode, cast_us: dict[str, float]) -> Decision:
        problem, name = self.problem, node.name
        verdict = problem.fixed.get(name) or self.assignment.verdicts[name]
        if name in self.changes.retyped:
            verdict = Reason.READERS.of()
        cost, sites = problem.costs.nodes[name], problem.sites_of(name)
        return Decision(
            node=name,
            op_type=node.op.label,
            op_class=problem.op_class(name),
            decided_by=verdict.decided_by,
            facts=verdict.facts,
            fp32_us=cost.fp32_us,
            gain_us=cost.gain_us,
            cast_us=sum(cast_us.get(site.tensor, 0.0) for site in sites),
            other_cast_us=self._other_cast_us(name, sites),
            **self.changes.at(name)._asdict(),
            module=node.origin.module,
            kind=node.origin.kind,
            source=node.origin.source,
        )

    def _other_cast_us(self, name: str, sites: Sequence[CastSite]) -> float | None:
        if not self.problem.is_free(name) or self.problem.op_class(name) not in MAY_BE_LOW:
            return None
        return math.fsum(cast.turned_us(name) for site in sites for cast in self._counted(site))

    def _counted(self, site: CastSite) -> tuple["_CountedCast", ...]:
        if site.tensor not in self._casts_of:
            casts = () if site.tensor in self._share_us else site.casts
            self._casts_of[site.tensor] = tuple(_CountedCast(cast, self.low) for cast in casts)
        return self._casts_of[site.tensor]


def _shares_us(problem: Problem, low: frozenset[str]) -> dict[str, float]:
    """Share the one Cast of all weights out among those that are read low, by size."""
    if problem.flat is None:
        return {}
    sizes = {site.tensor: problem.flat.sizes[site.tensor] for site in problem.flat_casts(low)}
    total = sum(sizes.values())
    return {tensor: problem.flat_cast_us * size / total for tensor, size in sizes.items()}


class _CountedCast:
    """A possible Cast with its nodes counted once, so that asking for each of thousands stays linear."""

    __slots__ = ("_cast_us", "_fp32s", "_if_fp32", "_if_low", "_low", "_lows")

    def __init__(self, cast: PossibleCast, low: Collection[str]) -> None:
        self._low, self._cast_us = low, cast.cast_us
        self._if_low, self._if_fp32 = _quickly_searched(cast.if_low), _quickly_searched(cast.if_fp32)
        self._lows = 1 if self._if_low is None else sum(name in low for name in self._if_low)
        self._fp32s = 1 if self._if_fp32 is None else sum(name not in low for name in self._if_fp32)

    def turned_us(self, name: str) -> float:
        """Return what the Cast costs more if one node takes the other precision."""
        turned = -1 if name in self._low else 1
        lows = self._lows + turned * (self._if_low is not None and name in self._if_low)
        fp32s = self._fp32s - turned * (self._if_fp32 is not None and name in self._if_fp32)
        return self._cast_us * ((lows > 0 and fp32s > 0) - (self._lows > 0 and self._fp32s > 0))


def _quickly_searched(names: tuple[str, ...] | None) -> Collection[str] | None:
    return names if names is None or len(names) <= _FEW else frozenset(names)
