"""Results of checks, and of safety measured on data."""

import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, stderr, stdout, visible, without_commands
from .table import Cell, Column, Table, TableFormat, number
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.checking.verdict import Verdict, Verdicts
    from campo_onnx.emulation.data_safety import DataSafety

_STATUS_STYLES = {"passed": "green", "failed": "bold red", "not checked": "yellow", "not asked": "dim"}


def print_verdicts(checked: Sequence["Verdicts"], form: TableFormat = TableFormat.TEXT) -> None:
    """Print the verdicts: on a screen one table for each graph, else one for all."""
    if form is not TableFormat.TEXT:
        _verdicts_table(checked).show(form)
        return
    console = stdout()
    for verdicts in checked:
        title = f"{verdicts.mixed} against {verdicts.against}"
        if verdicts.device:
            runs = " captured as a CUDA graph" if verdicts.captured else ""
            title += f", {verdicts.device}{runs} ({cost_basis(verdicts.costs)})"
        console.print(escape(title), style="bold")
        if verdicts.error is not None:
            console.print(escape(str(verdicts.error)), style="bold red")
            continue
        columns = (
            Column("rule", of=lambda verdict: verdict.rule),
            Column("result", of=_result),
            Column("why", of=lambda verdict: verdict.finding.reason, may_break=True),
        )
        Table(columns).fill(verdicts.verdicts).show()


def _result(verdict: "Verdict") -> Cell:
    status = verdict.status.value
    return Cell(status, status, _STATUS_STYLES[status])


def _verdicts_table(checked: Sequence["Verdicts"]) -> Table:
    rows: list[tuple[str | float | None, ...]] = []
    for each in checked:
        if each.error is not None:
            rows.append((each.name, "check", "failed", None, None, str(each.error)))
        for verdict in each.verdicts:
            finding = verdict.finding
            own = verdict.rule, verdict.status.value, finding.value, finding.limit, finding.reason
            rows.append((each.name, *own))

    def figure(number: float | None) -> Cell:
        return Cell("" if number is None else f"{number:.4g}", number)

    return Table(
        (
            Column("graph", "graph", itemgetter(0)),
            Column("rule", "rule", itemgetter(1)),
            Column("result", "result", itemgetter(2)),
            number("value", "value", lambda row: figure(row[3])),
            number("limit", "limit", lambda row: figure(row[4])),
            Column("why", "why", itemgetter(5)),
        )
    ).fill(rows)


def print_annotations(text: str, *, beside_a_document: bool) -> None:
    """Print GitHub workflow commands; to stderr where stdout holds a document."""
    lines = (f"::{without_commands(visible(line)[2:])}\n" for line in text.split("\n") if line)
    stream = sys.stderr if beside_a_document else sys.stdout
    stream.write("".join(lines))
    stream.flush()


def print_data_safety(data: "DataSafety", budget: float) -> None:
    """Print how many nodes the data kept in FP32 and released, and the effect."""
    from campo_onnx.optimize.plan.reason import Reason

    console = stderr()
    worst = max(data.drift_after, key=lambda name: data.drift_after[name])
    console.print(
        escape(
            f"On the data: {len(data.forbidden)} nodes must stay FP32; {len(data.released)} that the lists "
            f"keep FP32 may run low, which saves {duration(data.gain_us)} per step. The largest "
            f"emulated error is {data.drift_after[worst]:.2g} ({worst}); the budget is {budget:g}."
        ),
        style="dim",
    )
    held = sum(verdict.decided_by is Reason.DATA_BUDGET for verdict in data.forbidden.values())
    if held:
        console.print(
            escape(
                f"{held} of them stay FP32 because the budget breaks without them. If gradients underflow, "
                "export the graph with a loss scale."
            ),
            style="dim",
        )
