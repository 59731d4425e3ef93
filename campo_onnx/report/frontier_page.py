"""The report of a frontier: what accuracy costs, and every plan that is worth it."""

from collections.abc import Sequence

from campo_onnx.emulation.frontier import Frontier
from campo_onnx.planning.frontier import envelope
from campo_onnx.report.costs import provenance
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import Page, render
from campo_onnx.report.pictures import frontier_picture
from campo_onnx.wording import visible


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
    return render(Page(template="frontier.html", title=title, values=values, data=data, command=command))
