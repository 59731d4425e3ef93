"""A trial: measured steps beside torch's, and predictions for other devices."""

from typing import TYPE_CHECKING

from campo_onnx.wording import duration

from .bench import print_failures, ratio_cell, step_cell, verdict_cell
from .console import escape, stdout
from .table import Cell, Column, Table, TableFormat

if TYPE_CHECKING:
    from campo_onnx.trial.result import GradientError, PlanFacts, Trial

_RATIO = len("1.021 (0.945 to 1.103)")


def print_trial(trial: "Trial", form: TableFormat = TableFormat.TEXT) -> None:
    """Print measured steps, what they say, and predictions."""
    measured = _measured(trial)
    if form is not TableFormat.TEXT:
        measured.show(form)
        return
    console, result = stdout(), trial.measured
    interrupted = ", interrupted" if result.interrupted else ""
    where = f"{result.machine.device}, {result.machine.software}: {result.steps} rounds{interrupted}"
    console.print(escape(f"Measured on {where}"), style="bold")
    measured.show()
    print_failures(result)
    for sentence in trial.sentences:
        console.print(escape(sentence))
    if trial.predictions:
        console.print("\nPredicted elsewhere, from public figures", style="bold")
        _predicted(trial.predictions).show()
    for note in (*trial.notes, *result.notes):
        console.print(escape(note), style="dim")


def _measured(trial: "Trial") -> Table:
    errors: dict[str, GradientError] = {error.name: error for error in trial.gradients}
    columns = [
        Column(title="step", key="name"),
        Column(title="median", key="step_us", is_number=True),
        Column(title="x torch, 95 %", key="speedup", is_number=True, may_break=True, least=_RATIO),
        Column(title="verdict", key="verdict"),
    ]
    if errors:
        columns.append(Column(title="gradients off by", key="gradient_error", is_number=True, rank=1))
        columns.append(Column(title="at worst", key="worst_gradient_error", is_number=True, rank=2))
        columns.append(Column(title="in", key="worst_gradient", rank=3, may_break=True))
    table = Table(columns)
    for row in trial.measured.rows:
        table.add(
            row.name,
            step_cell(row),
            ratio_cell(row),
            verdict_cell(row),
            *(_error_cells(errors.get(row.name)) if errors else ()),
        )
    return table


def _error_cells(error: "GradientError | None") -> tuple[Cell, ...]:
    if error is None:
        return Cell("-"), Cell("-"), Cell("-")
    return (
        Cell(f"{error.whole:.2g}", error.whole),
        Cell(f"{error.worst:.2g}", error.worst),
        Cell(error.parameter or "-", error.parameter),
    )


def _predicted(predictions: "tuple[PlanFacts, ...]") -> Table:
    table = Table(
        [
            Column(title="device", key="device"),
            Column(title="precision", key="precision"),
            Column(title="FP32", key="fp32_us", is_number=True),
            Column(title="mixed", key="predicted_us", is_number=True),
            Column(title="x FP32", key="predicted_speedup", is_number=True),
            Column(title="low nodes", key="low_nodes", is_number=True, rank=1),
            Column(title="casts", key="casts", is_number=True, rank=2),
        ]
    )
    for row in predictions:
        table.add(
            row.device,
            row.low if row.low_nodes else "fp32",
            Cell(duration(row.fp32_us), row.fp32_us),
            Cell(duration(row.predicted_us), row.predicted_us),
            Cell(f"{row.speedup:.2f}", row.speedup),
            Cell(f"{row.low_nodes:,} of {row.nodes:,}", row.low_nodes),
            Cell(f"{row.casts:,}", row.casts),
        )
    return table
