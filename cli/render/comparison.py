"""Strategies side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from .console import stdout
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.comparison import Comparison


def print_comparison(comparison: "Comparison", *, plot: Path | None) -> None:
    """Print strategies side by side."""
    console, baseline_us = stdout(), comparison.baseline.plan.predicted_us
    first = comparison.rows[0].plan
    known = "estimates from public figures" if first.source == "datasheet" else first.source
    console.print(escape(f"{first.device} ({known}), {first.low}"), style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    baseline = comparison.baseline.plan
    for column in ("strategy", "lists"):
        table.add_column(column, no_wrap=True)
    for column in ("low", "casts", "cast time", "predicted", "x fp32"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in (f"x {baseline.strategy} {baseline.lists}", "tensor cores", "measured"):
        table.add_column(column, justify="right")
    for row in comparison.rows:
        plan = row.plan
        table.add_row(
            plan.strategy,
            escape(plan.lists),
            str(len(plan.low_nodes)),
            str(len(plan.casts)),
            duration(plan.cast_us),
            duration(plan.predicted_us),
            f"{plan.speedup:.2f}",
            f"{baseline_us / plan.predicted_us:.2f}",
            f"{row.tensor_core_share:.0%}",
            "-" if row.measured_us is None else duration(row.measured_us),
            style="bold" if plan.strategy == "optimal" else None,
        )
    console.print(table)
    if plot is not None:
        console.print(escape(f"Wrote {plot}"))
