"""The report of a check: every rule on every graph."""

from collections.abc import Sequence
from typing import Any

from campo_onnx.checking.as_plan import AsPlan
from campo_onnx.checking.verdict import Verdicts
from campo_onnx.report.costs import MEANINGS
from campo_onnx.report.decisions import columns
from campo_onnx.report.page import Page, render
from campo_onnx.report.plan_page import plan_values


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
        return render(Page(template="verdicts.html", title=title, values=values | {"plan": None}))
    values |= plan_values(mixed.plan, mixed.problem, (mixed.before, mixed.after))
    data = columns([mixed.plan], mixed.problem)
    return render(Page(template="verdicts.html", title=title, values=values, data=data))


def _errors(verdicts: Verdicts) -> dict[str, Any] | None:
    """The error of each output, largest first, with its limit; None where drift was not measured."""
    finding = next((verdict.finding for verdict in verdicts.verdicts if verdict.finding.parts), None)
    if finding is None:
        return None
    rows = sorted(finding.parts.items(), key=lambda row: (-row[1], row[0]))
    longest = max(finding.limit or 0.0, rows[0][1]) or 1.0
    return {"rows": rows, "limit": finding.limit, "longest": longest}
