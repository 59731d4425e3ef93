"""The report of one plan."""

from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from campo_onnx.bench.result import BenchResult
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.report import Report, report_of
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.traffic import Traffic
from campo_onnx.report.costs import provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.families import FamilyRow, family_rows, whole_step
from campo_onnx.report.page import Page, render
from campo_onnx.report.pictures import bench_picture, bytes_picture, step_picture
from campo_onnx.wording import duration, gigabytes, visible


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
        "largest_error": next((error for _, error in errors if isfinite(error)), 0.0) or 1.0,
        "measured_picture": None if measured is None else bench_picture(measured),
    }
    title = f"{visible(model)} in mixed precision"
    data = columns([plan], problem)
    return render(
        Page(template="plan.html", title=title, values=values, data=data, notes=notes, command=command)
    )


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
