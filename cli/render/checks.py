"""Results of checks, and of safety measured on data."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, stderr, stdout, visible, without_commands
from .table import Cell, Column, Table, TableFormat
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.checking.verdict import Verdicts
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
        table = Table((Column(title="rule"), Column(title="result"), Column(title="why", may_break=True)))
        for verdict in verdicts.verdicts:
            status = verdict.status.value
            table.add(verdict.rule, Cell(status, status, _STATUS_STYLES[status]), verdict.finding.reason)
        table.show()


def _verdicts_table(checked: Sequence["Verdicts"]) -> Table:
    table = Table(
        (
            Column(title="graph", key="graph"),
            Column(title="rule", key="rule"),
            Column(title="result", key="result"),
            Column(title="value", key="value", is_number=True),
            Column(title="limit", key="limit", is_number=True),
            Column(title="why", key="why"),
        )
    )
    for verdicts in checked:
        if verdicts.error is not None:
            table.add(verdicts.name, "check", "failed", Cell(""), Cell(""), str(verdicts.error))
        for verdict in verdicts.verdicts:
            finding = verdict.finding
            figures = (Cell("" if n is None else f"{n:.4g}", n) for n in (finding.value, finding.limit))
            table.add(verdicts.name, verdict.rule, verdict.status.value, *figures, finding.reason)
    return table


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
