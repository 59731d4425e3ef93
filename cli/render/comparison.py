"""Strategies side by side, and the frontier of step time against error."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, print_note, stdout
from .plan import print_kind
from .table import Cell, Column, Table, TableFormat, number
from .units import duration, gigabytes, verdict_style

if TYPE_CHECKING:
    from campo_onnx.emulation.frontier import Frontier
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.planning.comparison import Comparison, ComparisonRow


def headline(plan: "Plan") -> str:
    """Say what predictions are for and what they rest on."""
    return f"{plan.where} ({cost_basis(plan.source)}), {plan.low.value}"


def print_comparison(comparison: "Comparison", *, plot: Path | None, form: TableFormat) -> None:
    """Print strategies side by side."""
    first, baseline = comparison.rows[0].plan, comparison.baseline.plan
    table = Table(_columns(comparison)).fill(
        comparison.rows, lambda row: "bold" if row.plan.strategy == "optimal" else ""
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


def _columns(comparison: "Comparison") -> list[Column]:
    baseline = comparison.baseline.plan
    over = baseline.strategy
    columns = [
        Column("strategy", "strategy", lambda row: row.plan.strategy),
        Column("lists", "lists", lambda row: row.plan.lists, may_break=True),
        number("low", "low_nodes", lambda row: len(row.plan.low_nodes), rank=5),
        number("casts", "casts", lambda row: len(row.plan.casts), rank=3),
        number("cast time", "cast_us", lambda row: row.plan.cast_us, duration, rank=6),
        number("predicted", "predicted_us", lambda row: row.plan.predicted_us, duration),
        number("x fp32", "predicted_speedup", lambda row: row.plan.speedup, "{:.2f}".format),
        number(
            f"x {over}",
            f"speedup_over_{over.replace('-', '_')}",
            lambda row: baseline.predicted_us / row.plan.predicted_us if row.plan.predicted_us else 1.0,
            "{:.2f}".format,
            rank=4,
        ),
        number("tensor", "tensor_core_share", lambda row: row.tensor_core_share, "{:.0%}".format, rank=7),
        number("launches", "launches", lambda row: row.traffic.total.launches, "{:,}".format, rank=8),
        number("moved", "moved_bytes", lambda row: row.traffic.total.moved_bytes, gigabytes, rank=9),
        number("by casts", "cast_moved_bytes", lambda row: row.traffic.casts.moved_bytes, gigabytes, rank=10),
        number("tensors at most", "peak_bytes", lambda row: row.traffic.peak_bytes, gigabytes, rank=11),
    ]
    if any(row.measured_us is not None for row in comparison.rows):
        columns += [
            number("measured", "measured_us", _measured),
            number("x fp32, 95 %", "measured_speedup", lambda row: Cell(_speedup(row), row.measured_speedup)),
            Column("verdict", "verdict", _verdict),
        ]
    return columns + [
        number(f"drift, {form}", f"drift_{form}", partial(_error, form), "{:.2g}".format)
        for form in comparison.rows[0].drift
    ]


def _error(form: str, row: "ComparisonRow") -> float | None:
    return row.drift[form].error


def _measured(row: "ComparisonRow") -> Cell:
    if row.measured_us is None:
        return Cell("does not run")
    return Cell(duration(row.measured_us), row.measured_us)


def _verdict(row: "ComparisonRow") -> Cell:
    verdict = "failed" if row.measured_us is None else row.verdict
    return Cell(verdict, verdict, verdict_style(verdict))


def _speedup(row: "ComparisonRow") -> str:
    if row.measured_speedup is None:
        return "-"
    if row.measured_bounds is None:
        return f"{row.measured_speedup:.3f}"
    low, high = row.measured_bounds
    return f"{row.measured_speedup:.3f} ({low:.3f} to {high:.3f})"


_FORMAT = Column("format", "low", lambda one: one.low.name)
_COLUMNS = (
    number("predicted", "predicted_us", lambda one: one.point.time_us, duration),
    number("x fp32", "predicted_speedup", lambda one: one.speedup, "{:.2f}".format),
    number("error, predicted", "predicted_error", lambda one: one.point.error, "{:.2g}".format),
    number("error, emulated", "emulated_error", lambda one: one.emulated_error, "{:.2g}".format),
    number("low", "low_nodes", lambda one: one.low_nodes, rank=1),
    number("casts", "casts", lambda one: one.casts, rank=2),
    number("proved least", "bound_us", lambda one: one.point.bound_us, duration, rank=3),
)


def print_frontiers(results: Sequence["Frontier"], form: TableFormat) -> None:
    """Print every point of a frontier for each format; on the screen only those that were emulated."""
    from campo_onnx.planning.frontier import envelope

    several = len(results) > 1
    rows = [one for result in results for one in result.plans]
    best = envelope(rows)
    is_best = Column("best of all", "best_of_all", lambda one: one in best, lambda yes: "*" * yes, rank=1)
    shown = [one for one in rows if form is not TableFormat.TEXT or one.emulated_error is not None]
    table = Table((_FORMAT, *_COLUMNS, is_best) if several else _COLUMNS).fill(shown)
    if form is not TableFormat.TEXT:
        table.show(form)
        return
    console = stdout()
    print_kind(results[0].problem.kind)
    console.print(escape(headline(results[0].plans[0].plan)), style="bold")
    table.show()
    for result in results:
        name = f"{result.plans[0].low.name}: " if several else ""
        for line in result.sentences:
            console.print(escape(f"{name}{line}"))
    if several:
        console.print("*: at some price of error nothing in any format costs less.")
