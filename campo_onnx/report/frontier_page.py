"""The report of a frontier: what accuracy costs, and every plan that is worth it."""

from campo_onnx.emulation.frontier import Frontier
from campo_onnx.report.costs import provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import Page, render
from campo_onnx.report.pictures import frontier_picture
from campo_onnx.wording import visible


def frontier_page(frontier: Frontier, *, model: str, command: str = "") -> str:
    """Write the report of a frontier as HTML."""
    shown = [one for one in frontier.plans if one.emulated_error is not None]
    plans = [one.plan for one in shown]
    values = {
        "model": model,
        "kind": frontier.problem.kind.told,
        "low": plans[0].low.value.upper(),
        "captured": plans[0].captured,
        "rows": frontier.plans,
        "shown": shown,
        "sentences": frontier.sentences,
        "costs": provenance(plans[0], frontier.problem),
        "picture": frontier_picture(frontier.plans),
    }
    data = columns(plans, frontier.problem) | {"chosen": 0}
    title = f"{visible(model)}: step time against error"
    return render(Page(template="frontier.html", title=title, values=values, data=data, command=command))
