"""Time, bytes and launches by family of operators, before and after."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.traffic import Moved, Traffic

CASTS = "casts"
"""Casts of the given graph and those that a plan inserts; they are not a family of operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One family of operators, all Casts, or the whole step.

    Bytes and launches `before` and `after` are None where only a plan file is at hand.
    """

    name: str
    nodes: int
    low_nodes: int
    fp32_us: float
    planned_us: float
    before: Moved | None = None
    after: Moved | None = None


def family_rows(plan: Plan, moved: tuple[Traffic, Traffic] | None) -> tuple[FamilyRow, ...]:
    """Sum a plan up by family, longest first; the Casts come last."""
    groups: dict[str, list[Decision]] = {CASTS: []}
    for decision in plan.decisions:
        op = OpKey.parse(decision.op_type)
        groups.setdefault(CASTS if op == CAST else spec(op).family.value, []).append(decision)
    before, after = (None, None) if moved is None else map(_by_name, moved)
    rows = [
        FamilyRow(
            name=name,
            nodes=len(decisions),
            low_nodes=sum(d.is_lowered for d in decisions),
            fp32_us=math.fsum(d.fp32_us for d in decisions),
            planned_us=_planned_us(plan, decisions) + (plan.cast_us if name == CASTS else 0.0),
            before=None if before is None else before.get(name, Moved()),
            after=None if after is None else after.get(name, Moved()),
        )
        for name, decisions in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.name == CASTS, -row.fp32_us, row.name)))


def whole_step(plan: Plan, rows: Sequence[FamilyRow]) -> FamilyRow:
    """Sum all families up, in the plan's own figures."""
    before = [row.before for row in rows if row.before is not None]
    after = [row.after for row in rows if row.after is not None]
    return FamilyRow(
        name="the whole step",
        nodes=sum(row.nodes for row in rows),
        low_nodes=sum(row.low_nodes for row in rows),
        fp32_us=plan.fp32_us,
        planned_us=plan.predicted_us,
        before=sum(before, Moved()) if before else None,
        after=sum(after, Moved()) if after else None,
    )


def _planned_us(plan: Plan, decisions: Sequence[Decision]) -> float:
    dropped = {cast.node for cast in plan.dropped}
    return math.fsum(d.planned_us for d in decisions if d.node not in dropped)


def _by_name(counted: Traffic) -> dict[str, Moved]:
    return {CASTS: counted.casts} | {family.value: moved for family, moved in counted.by_family.items()}
