"""Reports of several plans of one step: the strategies of a comparison, and a frontier."""

from collections.abc import Sequence

from campo_onnx.emulation.frontier import Frontier
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY
from campo_onnx.planning.comparison import Comparison
from campo_onnx.planning.frontier import envelope
from campo_onnx.report.costs import provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import render
from campo_onnx.report.pictures import frontier_picture, plans_picture
from campo_onnx.wording import visible


def comparison_page(comparison: Comparison, *, model: str, command: str = "") -> str:
    """Write the report of a comparison as HTML."""
    rows = comparison.rows
    plans = [row.plan for row in rows]
    default = next((i for i, plan in enumerate(plans) if plan.strategy == DEFAULT_STRATEGY), 0)
    values = {
        "model": model,
        "kind": comparison.problem.kind.told,
        "low": plans[0].low.value.upper(),
        "rows": rows,
        "chosen": default,
        "baseline": comparison.baseline.plan,
        "fastest_us": min(plan.predicted_us for plan in plans),
        "longest_us": max(plan.predicted_us for plan in plans) or 1.0,
        "was_measured": any(row.measured_us is not None for row in rows),
        "costs": provenance(plans[0], comparison.problem),
        "plans_picture": plans_picture(plans, [row.measured_us for row in rows]),
    }
    data = columns(plans, comparison.problem) | {"chosen": default}
    title = f"{visible(model)} under every strategy"
    return render("comparison.html", title, values, data, command=command)


def frontier_page(frontiers: Sequence[Frontier], *, model: str, command: str = "") -> str:
    """Write the report of a frontier as HTML.

    Decisions of plans that were emulated can be looked at, in the format of the fastest.
    """
    first = min(frontiers, key=lambda one: one.plans[0].point.time_us)
    shown = [one for one in first.plans if one.emulated_error is not None]
    plans = [one.plan for one in shown]
    rows = [one for frontier in frontiers for one in frontier.plans]
    best = envelope(rows)
    values = {
        "model": model,
        "kind": first.problem.kind.told,
        "low": ", ".join(frontier.plans[0].low.name for frontier in frontiers),
        "captured": plans[0].captured,
        "rows": [(one, one in best) for one in rows],
        "several": len(frontiers) > 1,
        "shown": shown,
        "sentences": [
            f"{frontier.plans[0].low.name}: {sentence}"
            for frontier in frontiers
            for sentence in frontier.sentences
        ],
        "costs": provenance(plans[0], first.problem),
        "picture": frontier_picture([frontier.plans for frontier in frontiers]),
    }
    data = columns(plans, first.problem) | {"chosen": 0}
    title = f"{visible(model)}: step time against error"
    return render("frontier.html", title, values, data, command=command)
