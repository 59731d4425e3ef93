"""What a person wants to know of a plan: what was won, what casts cost, what stayed FP32 and why."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.plan import Decision, Plan

_WHY = {
    "never-worse": "the whole assignment is predicted no faster than FP32",
    "verify": "measured, the mixed step does not win",
    "min-gain": "the step would gain too little to be sure of",
    "traverse-1": "casts would cost more than low precision gains",
    "traverse-2": "downstream of a deny node",
    "traverse-3": "not between low nodes",
    "traverse-4": "casts would cost more than low precision gains",
    "deny": "downstream of a deny node",
    "taint": "downstream of a deny node",
    "minimum-cut": "casts would cost more than low precision gains",
    "dispatch": "its inputs are FP32 there",
    "margin": "FP32 wins by more than the margin",
    "between": "not between low nodes",
    "kernel": "no low-precision kernel",
    "constant": "a constant the low precision loses",
    "overflow": "a constant that overflows",
    "user": "named by --keep-fp32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One operator's share of the step.

    Parameters
    ----------
    op_type
        The operator.
    nodes, low_nodes
        How many there are, and how many are low in the plan.
    fp32_us, planned_us
        Predicted time of all of them before and after, with pads but without casts.
    """

    op_type: str
    nodes: int
    low_nodes: int
    fp32_us: float
    planned_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """Nodes that stayed FP32 for one reason.

    Parameters
    ----------
    why
        The reason.
    nodes, fp32_us
        How many, and their predicted time.
    op_types
        The operators it concerns most, as ``"Mul 12, Add 3"``.
    """

    why: str
    nodes: int
    fp32_us: float
    op_types: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A plan in numbers.

    Parameters
    ----------
    plan
        The plan.
    float_nodes, low_nodes
        Nodes that compute floating point, and those of them that are low.
    casts_down, casts_up
        Casts to the low precision and back.
    ops
        Rows by predicted FP32 time, longest first.
    kept
        Rows by predicted FP32 time, longest first.
    unknown_ops
        Operators no list knows, with their count.
    """

    plan: Plan
    float_nodes: int
    low_nodes: int
    casts_down: int
    casts_up: int
    ops: tuple[OpRow, ...]
    kept: tuple[KeptRow, ...]
    unknown_ops: tuple[tuple[str, int], ...]

    @property
    def changeable_us(self) -> tuple[float, float]:
        """FP32 and low-precision time, without casts, of all nodes that take another time in each."""
        changed = [d for d in self.plan.decisions if d.gain_us]
        return sum(d.fp32_us for d in changed), sum(d.low_us for d in changed)


def report_of(plan: Plan) -> Report:
    """Sum a plan up."""
    decisions = [d for d in plan.decisions if d.precision != "-"]
    kept = [d for d in decisions if d.precision == Precision.FP32.value]
    casts_down = sum(cast.dst == plan.low for cast in plan.casts)
    unknown = Counter(d.op_type for d in plan.decisions if d.op_class == OpClass.UNKNOWN.value)
    return Report(
        plan=plan,
        float_nodes=len(decisions),
        low_nodes=len(decisions) - len(kept),
        casts_down=casts_down,
        casts_up=len(plan.casts) - casts_down,
        ops=_op_rows(decisions),
        kept=_kept_rows(kept),
        unknown_ops=tuple(unknown.most_common()),
    )


def _op_rows(decisions: list[Decision]) -> tuple[OpRow, ...]:
    groups: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        groups[decision.op_type].append(decision)
    rows = [
        OpRow(
            op_type=op_type,
            nodes=len(group),
            low_nodes=sum(d.precision != Precision.FP32.value for d in group),
            fp32_us=sum(d.fp32_us for d in group),
            planned_us=sum(d.planned_us for d in group),
        )
        for op_type, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.fp32_us, row.op_type)))


def _kept_rows(kept: list[Decision]) -> tuple[KeptRow, ...]:
    groups: dict[str, list[Decision]] = defaultdict(list)
    for decision in kept:
        if decision.op_type != "Constant":
            groups[_why(decision)].append(decision)
    rows = [
        KeptRow(
            why=why,
            nodes=len(group),
            fp32_us=sum(d.fp32_us for d in group),
            op_types=_most(group),
        )
        for why, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.fp32_us, row.why)))


def _why(decision: Decision) -> str:
    if decision.decided_by == "lists":
        # Reasons of pattern rules stand for themselves; of the lists, the class says it all.
        listed = decision.reason.startswith(decision.op_type)
        return (
            f"on the {decision.op_class} list"
            if listed and decision.op_class == "deny"
            else (f"{decision.op_class} operator" if listed else decision.reason)
        )
    if decision.decided_by in _WHY:
        return _WHY[decision.decided_by]
    return "reads a scalar input of unknown size" if "scalar input" in decision.reason else decision.reason


def _most(group: list[Decision], limit: int = 3) -> str:
    counts = Counter(decision.op_type for decision in group).most_common()
    shown = ", ".join(f"{op_type} {count}" for op_type, count in counts[:limit])
    return shown + (f", {len(counts) - limit} more" if len(counts) > limit else "")
