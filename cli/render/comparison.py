"""Strategies side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .console import escape, stdout
from .units import duration, gigabytes

if TYPE_CHECKING:
    from campo_onnx.comparison import Comparison, ComparisonRow
    from campo_onnx.optimize.plan import Plan


def headline(plan: "Plan") -> str:
    """Say what predictions are for and what they rest on."""
    known = "estimates from public figures" if plan.source == "datasheet" else plan.source
    return f"{plan.device} ({known}), {plan.low.value}"


def print_comparison(comparison: "Comparison", *, plot: Path | None) -> None:
    """Print strategies side by side."""
    console, baseline_us = stdout(), comparison.baseline.plan.predicted_us
    first = comparison.rows[0].plan
    console.print(escape(headline(first)), style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    baseline = comparison.baseline.plan
    for column in ("strategy", "lists"):
        table.add_column(column, no_wrap=True)
    for column in ("low", "casts", "cast time", "predicted", "x fp32"):
        table.add_column(column, justify="right", no_wrap=True)
    was_measured = any(row.measured_us is not None for row in comparison.rows)
    beside = ("measured", "x fp32") if was_measured else ()
    for column in (f"x {baseline.strategy}", "tensor", *beside):
        table.add_column(column, justify="right", no_wrap=True)
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
            *(_measured(row) if was_measured else ()),
            style="bold" if plan.strategy == "optimal" else None,
        )
    console.print(table)
    console.print(
        f"x {baseline.strategy}: against {baseline.strategy} with the lists {escape(baseline.lists)}."
    )
    console.print(_moved_table(comparison))
    if plot is not None:
        console.print(escape(f"Wrote {plot}"))


def _moved_table(comparison: "Comparison") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What a step launches and moves", title_justify="left")
    for column in ("strategy", "lists"):
        table.add_column(column, no_wrap=True)
    for column in ("launches", "moved", "of it by casts", "tensors at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in comparison.rows:
        moved = row.traffic
        table.add_row(
            row.plan.strategy,
            escape(row.plan.lists),
            f"{moved.total.launches:,}",
            gigabytes(moved.total.moved_bytes),
            gigabytes(moved.casts.moved_bytes),
            gigabytes(moved.peak_bytes),
        )
    return table


def _measured(row: "ComparisonRow") -> tuple[str, str]:
    if row.measured_us is None or row.measured_speedup is None:
        return "does not run", "-"
    return duration(row.measured_us), f"{row.measured_speedup:.2f}"
