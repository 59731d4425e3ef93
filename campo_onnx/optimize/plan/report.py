"""A summary of a plan for people: its gain, its Casts, and the nodes that stay FP32, with reasons."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One operator's share of the step."""

    op_type: str
    nodes: int
    low_nodes: int
    # fp32_us, planned_us: predicted time of all of them before and after, with pads but without casts.
    fp32_us: float
    planned_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """Nodes that stayed FP32 for one reason."""

    reason: Reason
    why: str
    nodes: int
    fp32_us: float
    op_types: str  # those it concerns most, as "Mul 12, Add 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A plan in numbers."""

    plan: Plan
    float_nodes: int  # nodes of floats in the planned graph, without Casts that it drops
    low_nodes: int
    # Nodes that the file has in another low precision, each with their count.
    other_low: tuple[tuple[Precision, int], ...]
    casts_down: int
    casts_up: int
    # ops, kept: rows by predicted FP32 time, longest first.
    ops: tuple[OpRow, ...]
    kept: tuple[KeptRow, ...]
    unknown_ops: tuple[tuple[str, int], ...]

    @property
    def changeable_us(self) -> tuple[float, float]:
        """FP32 and low-precision time, without casts, of all nodes that take another time in each."""
        changed = [d for d in self.plan.decisions if d.gain_us]
        return math.fsum(d.fp32_us for d in changed), math.fsum(d.low_us for d in changed)


def report_of(plan: Plan) -> Report:
    """Sum a plan up."""
    dropped = {cast.node for cast in plan.dropped}
    decisions = [d for d in plan.decisions if d.precision is not None]
    counts = Counter(d.precision for d in decisions if d.node not in dropped)
    in_fp32 = [d for d in decisions if d.precision is Precision.FP32 and d.node not in dropped]
    casts_down = sum(cast.dst is plan.low for cast in plan.casts)
    unknown = Counter(d.op_type for d in plan.decisions if d.op_class is OpClass.UNKNOWN)
    return Report(
        plan=plan,
        float_nodes=counts.total(),
        low_nodes=counts[plan.low],
        other_low=tuple(
            (each, count) for each, count in counts.items() if each and each not in (plan.low, Precision.FP32)
        ),
        casts_down=casts_down,
        casts_up=len(plan.casts) - casts_down,
        ops=_op_rows(decisions, plan.low, dropped),
        kept=_kept_rows(in_fp32),
        unknown_ops=tuple(unknown.most_common()),
    )


def _op_rows(decisions: list[Decision], low: Precision, dropped: set[str]) -> tuple[OpRow, ...]:
    groups: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        groups[decision.op_type].append(decision)
    rows = [
        OpRow(
            op_type=op_type,
            nodes=sum(d.node not in dropped for d in group),
            low_nodes=sum(d.precision is low for d in group),
            fp32_us=math.fsum(d.fp32_us for d in group),
            planned_us=math.fsum(d.planned_us for d in group if d.node not in dropped),
        )
        for op_type, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.fp32_us, row.op_type)))


def _kept_rows(decisions: list[Decision]) -> tuple[KeptRow, ...]:
    groups: dict[tuple[Reason, str], list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.op_type != "Constant":
            groups[decision.decided_by, decision.verdict.summary].append(decision)
    rows = [
        KeptRow(
            reason=reason,
            why=summary,
            nodes=len(group),
            fp32_us=math.fsum(d.fp32_us for d in group),
            op_types=_most(group),
        )
        for (reason, summary), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.fp32_us, row.why)))


def _most(group: list[Decision], limit: int = 3) -> str:
    counts = Counter(decision.op_type for decision in group).most_common()
    shown = ", ".join(f"{op_type} {count}" for op_type, count in counts[:limit])
    return shown + (f", {len(counts) - limit} more" if len(counts) > limit else "")
