"""From a strategy's answer to a plan: every change of the graph, with its price."""

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cache

from campo_onnx.ir.view import TensorKind, Use
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.casts import CastKind, CastSite, PossibleCast, existing_versions
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW
from campo_onnx.optimize.plan.consistency import precision_of
from campo_onnx.optimize.plan.edits import Decision, ExistingCast, LowConstant, PlannedCast
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
        self.view = problem.view
        self.retyped = {site.retyped for site in problem.sites.values() if site.is_retyped(self.low)}
        self.existing = existing_versions(self.view, problem.low)
        self._casts_of: dict[str, tuple[_CountedCast, ...]] = {}
        self._share_us = _shares_us(problem, self.low)

    def plan(self, strategy: str, lists: str) -> Plan:
        problem = self.problem
        casts = tuple(self._new_casts())
        cast_us = {cast.tensor: cast.cast_us for cast in casts}
        dropped = tuple(self._dropped_casts())
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
                cost.fp32_us for name, cost in problem.costs.nodes.items() if name not in self.view.node
            ),
            digest=problem.digest,
            casts=casts,
            reused=tuple(self._reused_casts({cast.node for cast in dropped})),
            dropped=dropped,
            constants=tuple(self._constants()),
            decisions=tuple(self._decision(node.name, cast_us) for node in self.view.nodes),
        )

    def _decision(self, name: str, cast_us: dict[str, float]) -> Decision:
        problem, node = self.problem, self.view.node[name]
        verdict = problem.fixed.get(name) or self.assignment.verdicts[name]
        ports, cost = problem.ports[name], problem.costs.nodes[name]
        sites = problem.sites_of(name)
        is_low = name in self.low or name in self.retyped
        if name in self.retyped:
            verdict = Reason.READERS.of()
        return Decision(
            node=name,
            op_type=node.op.label,
            op_class=problem.op_class(name),
            precision=self._precision(name),
            decided_by=verdict.decided_by,
            facts=verdict.facts,
            fp32_us=cost.fp32_us,
            gain_us=cost.gain_us,
            cast_us=sum(cast_us.get(site.tensor, 0.0) for site in sites),
            other_cast_us=self._other_cast_us(name, sites),
            low_inputs=_in_order(ports.low_inputs) if is_low else (),
            low_outputs=_in_order(ports.low_outputs) if is_low else (),
            attribute=(ports.attribute or "") if is_low else "",
            follows=tuple(self._followed(name)),
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

    def _precision(self, name: str) -> Precision | None:
        if name in self.low or name in self.retyped:
            return self.problem.low
        return precision_of(self.view.node[name], self.view)

    def _followed(self, name: str) -> Iterator[int]:
        """Positions of inputs that the node reads in whatever precision is there, where that is low."""
        any_inputs = self.problem.ports[name].any_inputs
        for position, tensor in enumerate(self.view.node[name].inputs):
            site = self.problem.sites.get(tensor)
            is_any = position in any_inputs
            if site is None or (site.existing is None and not is_any):
                continue
            existing = site.existing
            dropped = [cast.node for cast in site.dropped(self.low)]
            if existing is not None and name in existing.copies and name not in dropped:
                # A copy that keeps its name casts from low to low where there is no FP32 version.
                follows = site.is_made_low(self.low)
            elif is_any:
                gone = existing is not None and existing.is_source and existing.cast in dropped
                follows = gone or (site.is_made_low(self.low) and site.new_cast(self.low) is None)
            else:
                follows = False
            if follows:
                yield position

    def _low_uses(self, tensor: str) -> tuple[Use, ...]:
        """The readings of a tensor in the low precision."""
        return tuple(
            use
            for use in self.view.consumers.get(tensor, ())
            if use.node in self.low and use.position in self.problem.ports[use.node].low_inputs
        )

    def _fp32_uses(self, site: CastSite) -> tuple[Use, ...]:
        """The readings that want a tensor in FP32."""
        low = set(self._low_uses(site.tensor))
        existing = site.existing
        excused = () if existing is None else (existing.cast, *existing.copies)
        return tuple(
            use
            for use in self.view.consumers.get(site.tensor, ())
            if use not in low
            and use.position not in self.problem.ports[use.node].any_inputs
            and use.node not in excused
        )

    def _new_casts(self) -> Iterator[PlannedCast]:
        for site in self.problem.sites.values():
            cast = site.new_cast(self.low)
            if cast is None:
                continue
            goes_down = cast.kind is CastKind.DOWN
            producer = self.view.producer.get(site.tensor)
            yield PlannedCast(
                tensor=site.tensor,
                src=Precision.FP32 if goes_down else self.problem.low,
                dst=self.problem.low if goes_down else Precision.FP32,
                producer=producer.name if producer is not None else "",
                consumers=self._low_uses(site.tensor) if goes_down else self._fp32_uses(site),
                cast_us=self._share_us.get(site.tensor, cast.cast_us),
            )

    def _dropped_casts(self) -> Iterator[ExistingCast]:
        for site in self.problem.sites.values():
            for cast in site.dropped(self.low):
                assert site.existing is not None
                if site.existing.is_source:
                    consumers = tuple(self.view.consumers[site.tensor])  # all, or it would stay
                elif cast.node in site.existing.copies:
                    target = self.view.node[cast.node].outputs[0]
                    consumers = tuple(self.view.consumers.get(target, ()))
                else:
                    consumers = ()  # the producer makes what they read, under the same name
                yield ExistingCast(
                    node=cast.node,
                    tensor=site.tensor,
                    low_tensor=site.existing.name,
                    consumers=consumers,
                    cast_us=cast.cast_us,
                )

    def _reused_casts(self, dropped: set[str]) -> Iterator[ExistingCast]:
        for tensor, existing in self.existing.items():
            site = self.problem.sites.get(tensor)
            consumers = self._low_uses(tensor)
            if existing.cast in dropped or not consumers or (site and site.is_made_low(self.low)):
                continue
            yield ExistingCast(
                node=existing.cast,
                tensor=tensor,
                low_tensor=existing.name,
                consumers=consumers,
                cast_us=self.problem.costs.nodes[existing.cast].fp32_us,
            )

    def _constants(self) -> Iterator[LowConstant]:
        for tensor, info in self.view.tensors.items():
            if info.kind is not TensorKind.CONSTANT or tensor in self.existing:
                continue
            consumers = self._low_uses(tensor)
            if consumers:
                everybody = len(self.view.consumers[tensor]) == len(consumers)
                yield LowConstant(
                    tensor=tensor, consumers=consumers, keeps_fp32=not everybody or info.is_output
                )


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


@cache
def _in_order(positions: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(positions))


def _quickly_searched(names: tuple[str, ...] | None) -> Collection[str] | None:
    return names if names is None or len(names) <= _FEW else frozenset(names)
