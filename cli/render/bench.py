"""A benchmark: the step of each graph, with confidence intervals and verdicts."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .console import escape, print_note, stderr, stdout
from .table import Cell, Column, Table, TableFormat
from .units import duration, gigabytes, verdict_style

_RATIO = len("1.021 (0.945 to 1.103)")

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchResult, BenchRow, Interval


def print_bench(result: "BenchResult", form: TableFormat = TableFormat.TEXT) -> None:
    """Print one row per graph, and notes."""
    if form is not TableFormat.TEXT:
        _table(result).show(form)
        return
    console, machine = stdout(), result.machine
    plural = "" if machine.threads == 1 else "s"
    threads = f", {machine.threads} thread{plural}" if machine.threads else ""
    precision = ", FP32 products as TF32" if machine.tf32 else ""
    rounds = f"{result.steps} rounds" + (", interrupted" if result.interrupted else "")
    console.print(
        escape(f"{machine.device} ({machine.provider}{threads}), {machine.software}{precision}: {rounds}"),
        style="bold",
    )
    _table(result).show()
    if machine.is_gpu:
        for subject, source in (("energy", result.energy_from), ("memory", result.memory_from)):
            if source.startswith("not measured"):
                console.print(escape(f"{subject} {source}"), style="dim")
    elif any(row.peak_bytes is not None for row in result.rows):
        console.print(escape(f"memory: inputs and outputs, and {result.memory_from}"), style="dim")
    for note in result.notes:
        console.print(escape(note), style="dim")


def print_failures(result: "BenchResult") -> None:
    """Print why graphs failed."""
    for row in result.rows:
        if row.failure:
            stderr().print(f"[bold red]{escape(row.name)} failed:[/bold red] {escape(row.failure)}")


def print_written(*paths: Path | None, form: TableFormat = TableFormat.TEXT) -> None:
    """Print which files were written."""
    written = [str(path) for path in paths if path is not None]
    if written and form is not TableFormat.TEXT:
        print_note(f"Wrote {' and '.join(written)}")
    elif written:
        stdout().print(escape(f"Wrote {' and '.join(written)}"))


class _Figure(NamedTuple):
    """A column that is there where some graph has the figure."""

    title: str
    key: str
    rank: int
    text: "Callable[[Any], str]"


_BEFORE_RATIO = (_Figure("samples/s", "samples_per_s", 4, "{:,.4g}".format),)
_BEHIND_VERDICT = (
    _Figure("launches", "launches", 8, "{:,}".format),
    _Figure("moved", "moved_bytes", 7, gigabytes),
    _Figure("energy", "energy_j", 3, lambda i: f"{i.median:.3g} J ({i.low:.3g} to {i.high:.3g})"),
    _Figure("memory", "peak_bytes", 5, lambda held: f"{held / 2**20:,.0f} MiB"),
    _Figure("tensors at most", "alive_bytes", 10, gigabytes),
    _Figure("tensor cores", "tensor_pipe_share", 6, "{:.0%}".format),
)


def _figures(
    rows: "Sequence[BenchRow]", *figures: _Figure
) -> "Iterator[tuple[Column, Callable[[BenchRow], Cell]]]":
    for figure in figures:
        if any(getattr(row, figure.key) is not None for row in rows):
            column = Column(title=figure.title, key=figure.key, is_number=True, rank=figure.rank)
            yield column, partial(_figure_cell, figure)


def _figure_cell(figure: _Figure, row: "BenchRow") -> Cell:
    value = getattr(row, figure.key)
    return Cell("-") if value is None else Cell(figure.text(value), getattr(value, "median", value))


def _table(result: "BenchResult") -> Table:
    rows = result.rows
    is_compared = len(rows) > 1
    shown: list[tuple[Column, Callable[[BenchRow], Cell]]] = [
        (Column(title="graph", key="graph", may_break=True), lambda row: Cell(row.name, row.name)),
        (Column(title="step", key="step_us", is_number=True), step_cell),
        (Column(title="95 % interval", is_number=True, rank=2), _step_interval),
    ]
    shown += _figures(rows, *_BEFORE_RATIO)
    if is_compared:
        title = f"x {rows[0].name}, 95 % interval"
        shown.append(
            (Column(title=title, key="speedup", is_number=True, may_break=True, least=_RATIO), ratio_cell)
        )
    shown.append((Column(title="verdict", key="verdict"), verdict_cell))
    shown += _figures(rows, *_BEHIND_VERDICT)
    for bound, of in (("low", lambda i: i.low), ("high", lambda i: i.high)):
        shown.append((Column(title="", key=f"speedup_{bound}", rank=9, csv_only=True), _bound(of)))
    table = Table([column for column, _ in shown])
    for row in rows:
        table.add(*(cell(row) for _, cell in shown))
    return table


def _bound(of: "Callable[[Interval], float]") -> "Callable[[BenchRow], Cell]":
    return lambda row: Cell("", None if row.speedup is None else of(row.speedup))


def verdict_cell(row: "BenchRow") -> Cell:
    """Show how a step compares with the first."""
    word = row.verdict.value
    return Cell(word, word, verdict_style(word))


def step_cell(row: "BenchRow") -> Cell:
    """Show the median step."""
    if row.step_us is None:
        return Cell("-")
    return Cell(duration(row.step_us.median), row.step_us.median)


def _step_interval(row: "BenchRow") -> Cell:
    interval = row.step_us
    if interval is None:
        return Cell("-")
    unit, size = ("ms", 1000.0) if interval.median >= 1000 else ("us", 1.0)
    low, high = (f"{bound / size:,.2f}" for bound in (interval.low, interval.high))
    return Cell(f"{low} to {high} {unit}", style="dim")


def ratio_cell(row: "BenchRow") -> Cell:
    """Show the speed-up over the first, with its interval."""
    interval = row.speedup
    if interval is None:
        return Cell("-")
    return Cell(f"{interval.median:.3f} ({interval.low:.3f} to {interval.high:.3f})", interval.median)
