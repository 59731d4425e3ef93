"""The report of one plan, and that of a check: every rule on every graph."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from campo_onnx.bench.result import BenchResult
from campo_onnx.checking.as_plan import AsPlan
from campo_onnx.checking.verdict import Verdicts
from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.report import Report, report_of
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.traffic import Moved, Traffic
from campo_onnx.report.costs import MEANINGS, provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import render
from campo_onnx.report.pictures import bench_picture, bytes_picture, step_picture
from campo_onnx.wording import duration, gigabytes, visible

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


class Card(NamedTuple):
    """One figure at the top of a report, with what it is and what it rests on."""

    title: str
    figure: str
    note: str


def plan_page(
    plan: Plan,
    problem: Problem | None = None,
    moved: tuple[Traffic, Traffic] | None = None,
    *,
    model: str,
    notes: Sequence[str] = (),
    measured: BenchResult | None = None,
    alternatives: Sequence[Plan] = (),
    drift: Mapping[str, float] = MappingProxyType({}),
    command: str = "",
) -> str:
    """Write the report of a plan as HTML.

    Without the `problem`, where only a plan file is at hand, nothing is said about shapes, neighbours and the
    sources of single costs. `moved` is what the given step and the planned one launch and move, if that is
    known.
    """
    errors = sorted(drift.items(), key=lambda row: (-row[1], row[0]))
    values = {
        **plan_values(plan, problem, moved),
        "model": model,
        "measured": measured,
        "alternatives": alternatives,
        "errors": errors,
        "largest_error": next((error for _, error in errors if math.isfinite(error)), 0.0) or 1.0,
        "measured_picture": None if measured is None else bench_picture(measured),
    }
    title = f"{visible(model)} in mixed precision"
    data = columns([plan], problem)
    return render("plan.html", title, values, data, notes=notes, command=command)


def plan_values(plan: Plan, problem: Problem | None, moved: tuple[Traffic, Traffic] | None) -> dict[str, Any]:
    """Values that templates read of a plan; parameters as for :func:`plan_page`."""
    rows = family_rows(plan, moved)
    whole = whole_step(plan, rows)
    costs, summed = provenance(plan, problem), report_of(plan)
    return {
        "plan": plan,
        "kind": "" if problem is None else problem.kind.told,
        "costs": costs,
        "cards": _cards(summed, whole, moved, costs.predicted, trains=problem is None or problem.kind.trains),
        "families": rows,
        "whole": whole,
        "longest_us": max((max(row.fp32_us, row.planned_us) for row in rows), default=0.0) or 1.0,
        "kept": summed.kept,
        "step_picture": step_picture(plan),
        "bytes_picture": None if moved is None else bytes_picture(*moved),
    }


def _cards(
    report: Report, whole: FamilyRow, moved: tuple[Traffic, Traffic] | None, how: str, *, trains: bool
) -> list[Card]:
    plan, low = report.plan, report.plan.low.value.upper()
    changed = bool(report.low_nodes or plan.casts)
    proven = (
        ""
        if plan.lower_bound_us is None
        else f" Proven: with these lists, rules and costs no plan is below {duration(plan.lower_bound_us)}."
    )
    cards = [
        Card(
            "Step" if trains else "Run",
            f"{plan.speedup:.2f}x" if changed else "unchanged",
            f"{duration(plan.fp32_us)} → {duration(plan.predicted_us)}, {how}.{proven}",
        ),
        Card(
            f"Nodes in {low}",
            f"{report.low_nodes:,} of {report.float_nodes:,}",
            "of those that compute floating point",
        ),
        Card(
            "Casts",
            f"{len(plan.casts):,}",
            f"{report.casts_down:,} to {low}, {report.casts_up:,} back; {duration(plan.cast_us)}, "
            f"{plan.cast_us / plan.predicted_us if plan.predicted_us else 0.0:.1%} of the step",
        ),
    ]
    if moved is not None:
        cards += _cards_of_traffic(whole, *moved)
    if plan.pads:
        gain_us = sum(pad.gain_us for pad in plan.pads)
        cards.append(
            Card(
                "Zero-padded",
                f"{len(plan.pads):,} products",
                f"kernels save {duration(gain_us)}, pads cost {duration(plan.pads_us)}",
            )
        )
    else:
        kept_us = sum(row.fp32_us for row in report.kept)
        share = kept_us / plan.predicted_us if plan.predicted_us else 0.0
        cards.append(Card("Stayed FP32", duration(kept_us), f"{share:.1%} of the step, predicted"))
    return cards


def _cards_of_traffic(whole: FamilyRow, before: Traffic, after: Traffic) -> list[Card]:
    if whole.before is None or whole.after is None:
        return []
    return [
        Card(
            "Bytes moved",
            f"{gigabytes(whole.before.moved_bytes)} → {gigabytes(whole.after.moved_bytes)}",
            "read and written in one step, counted",
        ),
        Card(
            "Launches",
            f"{whole.before.launches:,} → {whole.after.launches:,}",
            "kernels of one step, counted",
        ),
        Card(
            "Tensors at most",
            f"{gigabytes(before.peak_bytes)} → {gigabytes(after.peak_bytes)}",
            "memory that they take at a time, counted",
        ),
    ]


def check_page(checked: Sequence[Verdicts], mixed: AsPlan | None = None) -> str:
    """Write the verdicts on some graphs as HTML.

    `mixed` is, of a single graph, what it has made of each node. The page then shows its step, map,
    decisions, Casts and sources of costs, as that of a plan does.
    """
    failed = sum(not verdicts.passed for verdicts in checked)
    graphs = "graph" if len(checked) == 1 else "graphs"
    title = f"Check of {len(checked)} mixed {graphs}: {f'{failed} failed' if failed else 'passed'}"
    rules = sum(len(verdicts.verdicts) for verdicts in checked)
    outcome = f"{failed} with something that failed" if failed else "none failed"
    summary = f"{len(checked)} {graphs}, {rules} rules, {outcome}."
    values: dict[str, Any] = {
        "graphs": [(verdicts, _errors(verdicts)) for verdicts in checked],
        "summary": summary,
        "meanings": MEANINGS,
    }
    if mixed is None:
        return render("verdicts.html", title, values | {"plan": None})
    values |= plan_values(mixed.plan, mixed.problem, (mixed.before, mixed.after))
    data = columns([mixed.plan], mixed.problem)
    return render("verdicts.html", title, values, data)


def _errors(verdicts: Verdicts) -> dict[str, Any] | None:
    """The error of each output, largest first, with its limit; None where drift was not measured."""
    finding = next((verdict.finding for verdict in verdicts.verdicts if verdict.finding.parts), None)
    if finding is None:
        return None
    rows = sorted(finding.parts.items(), key=lambda row: (-row[1], row[0]))
    longest = max(finding.limit or 0.0, rows[0][1]) or 1.0
    return {"rows": rows, "limit": finding.limit, "longest": longest}
