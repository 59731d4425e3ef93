"""A trial: measured steps beside torch's, and predictions for other devices."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from campo_onnx.wording import duration

from .bench import RATIO, STEP, VERDICT, print_failures
from .console import escape, stdout
from .table import Cell, Column, Table, TableFormat, number

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchRow
    from campo_onnx.integrations.trial.result import GradientError, Trial


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
        Table(_PREDICTED).fill(trial.predictions).show()
    for note in (*trial.notes, *result.notes):
        console.print(escape(note), style="dim")


def _measured(trial: "Trial") -> Table:
    errors: dict[str, GradientError] = {error.name: error for error in trial.gradients}

    def error(name: str) -> "Callable[[BenchRow], Any]":
        return lambda row: getattr(errors.get(row.name), name, None)

    columns = [Column("step", "name", lambda row: row.name), replace(STEP, title="median")]
    columns += [replace(RATIO, title="x torch, 95 %"), VERDICT]
    if errors:
        columns += [
            number("gradients off by", "gradient_error", error("whole"), "{:.2g}".format, rank=1),
            number("at worst", "worst_gradient_error", error("worst"), "{:.2g}".format, rank=2),
            Column(
                "in", "worst_gradient", error("parameter"), lambda name: name or "-", rank=3, may_break=True
            ),
        ]
    return Table(columns).fill(trial.measured.rows)


_PREDICTED = (
    Column("device", "device", lambda row: row.device),
    Column("precision", "precision", lambda row: row.low if row.low_nodes else "fp32"),
    number("FP32", "fp32_us", lambda row: row.fp32_us, duration),
    number("mixed", "predicted_us", lambda row: row.predicted_us, duration),
    number("x FP32", "predicted_speedup", lambda row: row.speedup, "{:.2f}".format),
    number(
        "low nodes",
        "low_nodes",
        lambda row: Cell(f"{row.low_nodes:,} of {row.nodes:,}", row.low_nodes),
        rank=1,
    ),
    number("casts", "casts", lambda row: row.casts, "{:,}".format, rank=2),
)
