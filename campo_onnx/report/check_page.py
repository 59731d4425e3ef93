"""The report of a check: every rule on every graph."""

from collections.abc import Sequence
from typing import Any

from campo_onnx.checking.verdict import Verdicts
from campo_onnx.costs.evidence import CostSource
from campo_onnx.report.costs import MEANINGS
from campo_onnx.report.page import Page, render


def check_page(checked: Sequence[Verdicts]) -> str:
    """Write the verdicts on some graphs as HTML.

    Parameters
    ----------
    checked
        The graphs that were checked.
    """
    failed = sum(not verdicts.passed for verdicts in checked)
    graphs = "graph" if len(checked) == 1 else "graphs"
    title = f"Check of {len(checked)} mixed {graphs}: {f'{failed} failed' if failed else 'passed'}"
    rules = sum(len(verdicts.verdicts) for verdicts in checked)
    outcome = f"{failed} with something that failed" if failed else "none failed"
    summary = f"{len(checked)} {graphs}, {rules} rules, {outcome}."
    values = {"graphs": [_graph(verdicts) for verdicts in checked], "summary": summary}
    return render(Page(template="verdicts.html", title=title, values=values))


def _graph(verdicts: Verdicts) -> dict[str, Any]:
    return {
        "name": verdicts.name,
        "mixed": verdicts.mixed,
        "against": verdicts.against,
        "passed": verdicts.passed,
        "device": verdicts.device + (" captured as a CUDA graph" if verdicts.captured else ""),
        "costs_mean": MEANINGS[CostSource(verdicts.costs)] if verdicts.costs else "",
        "error": "" if verdicts.error is None else str(verdicts.error),
        "rules": [
            {
                "rule": verdict.rule,
                "status": verdict.status.value,
                "value": verdict.finding.value,
                "limit": verdict.finding.limit,
                "reason": verdict.finding.reason,
            }
            for verdict in verdicts.verdicts
        ],
    }
