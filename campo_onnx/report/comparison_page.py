"""The report of a comparison: every strategy on one graph."""

from campo_onnx.optimize.strategies import DEFAULT_STRATEGY
from campo_onnx.planning.comparison import Comparison
from campo_onnx.report.costs import provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import Page, render
from campo_onnx.report.pictures import plans_picture
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
    return render(Page(template="comparison.html", title=title, values=values, data=data, command=command))
