"""Strategies side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, print_note, stdout
from .plan import print_kind
from .table import Cell, Column, Table, TableFormat
from .units import duration, gigabytes, verdict_style

if TYPE_CHECKING:
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.optimize.traffic import Traffic
    from campo_onnx.planning.comparison import Comparison, ComparisonRow, Drift


def headline(plan: "Plan") -> str:
    """Say what predictions are for and what they rest on."""
    return f"{plan.where} ({cost_basis(plan.source)}), {plan.low.value}"


def print_comparison(comparison: "Comparison", *, plot: Path | None, form: TableFormat) -> None:
    """Print strategies side by side."""
    first, baseline = comparison.rows[0].plan, comparison.baseline.plan
    table = Table(_columns(comparison))
    for row in comparison.rows:
        plan = row.plan
        over = baseline.predicted_us / plan.predicted_us if plan.predicted_us else 1.0
        table.add(
            plan.strategy,
            plan.lists,
            Cell(str(len(plan.low_nodes)), len(plan.low_nodes)),
            Cell(str(len(plan.casts)), len(plan.casts)),
            Cell(duration(plan.cast_us), plan.cast_us),
            Cell(duration(plan.predicted_us), plan.predicted_us),
            Cell(f"{plan.speedup:.2f}", plan.speedup),
            Cell(f"{over:.2f}", over),
            Cell(f"{row.tensor_core_share:.0%}", row.tensor_core_share),
            *_moved(row.traffic),
            *(_measured(row) if _was_measured(comparison) else ()),
            *(_error(drift) for drift in row.drift.values()),
            style="bold" if plan.strategy == "optimal" else "",
        )
    if form is not TableFormat.TEXT:
        table.show(form)
        if plot is not None:
            print_note(f"Wrote {plot}")
        return
    console = stdout()
    print_kind(comparison.problem.kind)
    console.print(escape(headline(first)), style="bold")
    table.show()
    if any(column.title.startswith("x tf-amp") for column in table.columns):
        console.print(
            f"x {baseline.strategy}: against {baseline.strategy} with the lists {escape(baseline.lists)}."
        )
    if as_given := comparison.as_given:
        last_first = (row.plan for row in reversed(comparison.rows))  # of equal ones `optimal`
        best = min(last_first, key=lambda plan: round(plan.predicted_us, 6))
        raised, lowered = len(as_given.low_nodes - best.low_nodes), len(best.low_nodes - as_given.low_nodes)
        console.print(
            "The file is best left as it is."
            if best is as_given
            else f"{best.strategy} raises {raised} nodes of the file to FP32 and lowers {lowered}: predicted "
            f"{duration(as_given.predicted_us)} -> {duration(best.predicted_us)}.",
            soft_wrap=True,
        )
    for why in dict.fromkeys(
        drift.why for row in comparison.rows for drift in row.drift.values() if drift.why
    ):
        print_note(f"Not emulated: {why}")
    if comparison.interrupted:
        console.print("Interrupted: measured steps are of the rounds until then.")
    if plot is not None:
        console.print(escape(f"Wrote {plot}"))


def _was_measured(comparison: "Comparison") -> bool:
    return any(row.measured_us is not None for row in comparison.rows)


def _columns(comparison: "Comparison") -> tuple[Column, ...]:
    over = comparison.baseline.plan.strategy
    columns: tuple[Column, ...] = (
        Column(title="strategy", key="strategy"),
        Column(title="lists", key="lists", may_break=True),
        Column(title="low", key="low_nodes", is_number=True, rank=5),
        Column(title="casts", key="casts", is_number=True, rank=3),
        Column(title="cast time", key="cast_us", is_number=True, rank=6),
        Column(title="predicted", key="predicted_us", is_number=True),
        Column(title="x fp32", key="predicted_speedup", is_number=True),
        Column(title=f"x {over}", key=f"speedup_over_{over.replace('-', '_')}", is_number=True, rank=4),
        Column(title="tensor", key="tensor_core_share", is_number=True, rank=7),
        Column(title="launches", key="launches", is_number=True, rank=8),
        Column(title="moved", key="moved_bytes", is_number=True, rank=9),
        Column(title="by casts", key="cast_moved_bytes", is_number=True, rank=10),
        Column(title="tensors at most", key="peak_bytes", is_number=True, rank=11),
    )
    if _was_measured(comparison):
        columns = (
            *columns,
            Column(title="measured", key="measured_us", is_number=True),
            Column(title="x fp32, 95 %", key="measured_speedup", is_number=True),
            Column(title="verdict", key="verdict"),
        )
    drifts = (
        Column(title=f"drift, {form}", key=f"drift_{form}", is_number=True)
        for form in comparison.rows[0].drift
    )
    return (*columns, *drifts)


def _moved(traffic: "Traffic") -> tuple[Cell, ...]:
    total, casts = traffic.total, traffic.casts
    return (
        Cell(f"{total.launches:,}", total.launches),
        Cell(gigabytes(total.moved_bytes), total.moved_bytes),
        Cell(gigabytes(casts.moved_bytes), casts.moved_bytes),
        Cell(gigabytes(traffic.peak_bytes), traffic.peak_bytes),
    )


def _measured(row: "ComparisonRow") -> tuple[Cell, ...]:
    if row.measured_us is None:
        return Cell("does not run"), Cell("-"), Cell("failed", "failed", "bold red")
    verdict = row.verdict
    return (
        Cell(duration(row.measured_us), row.measured_us),
        Cell(_speedup(row), row.measured_speedup),
        Cell(verdict, verdict, verdict_style(verdict)),
    )


def _error(drift: "Drift") -> Cell:
    return Cell("-") if drift.error is None else Cell(f"{drift.error:.2g}", drift.error)


def _speedup(row: "ComparisonRow") -> str:
    if row.measured_speedup is None:
        return "-"
    if row.measured_bounds is None:
        return f"{row.measured_speedup:.3f}"
    low, high = row.measured_bounds
    return f"{row.measured_speedup:.3f} ({low:.3f} to {high:.3f})"
