"""Measured steps of a benchmark, with confidence intervals and verdicts, and of `optimize --verify`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from .console import escape, print_note, stderr, stdout
from .table import Cell, Column, Table, TableFormat, number
from .units import duration, gigabytes, verdict_style

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchResult, BenchRow, Interval
    from campo_onnx.bench.verify import Attempt, Verification


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


_BEFORE_RATIO = (number("samples/s", "samples_per_s", attrgetter("samples_per_s"), "{:,.4g}".format, rank=4),)
_BEHIND_VERDICT = (
    number("launches", "launches", attrgetter("launches"), "{:,}".format, rank=8),
    number("moved", "moved_bytes", attrgetter("moved_bytes"), gigabytes, rank=7),
    number("energy", "energy_j", lambda row: _in_full(row.energy_j, ".3g", " J"), rank=3),
    number("memory", "peak_bytes", attrgetter("peak_bytes"), lambda held: f"{held / 2**20:,.0f} MiB", rank=5),
    number("tensors at most", "alive_bytes", attrgetter("alive_bytes"), gigabytes, rank=10),
    number("tensor cores", "tensor_pipe_share", attrgetter("tensor_pipe_share"), "{:.0%}".format, rank=6),
)
"""Columns that are there where some graph has the figure."""

_RATIO = len("1.021 (0.945 to 1.103)")
RATIO = number("", "speedup", lambda row: _in_full(row.speedup, ".3f"), may_break=True, least=_RATIO)
"""The speed-up over the first, with its interval."""


def _in_full(interval: "Interval | None", form: str, unit: str = "") -> Cell | None:
    if interval is None:
        return None
    low, median, high = (f"{end:{form}}" for end in (interval.low, interval.median, interval.high))
    return Cell(f"{median}{unit} ({low} to {high})", interval.median)


def _table(result: "BenchResult") -> Table:
    rows = result.rows

    def with_values(columns: Sequence[Column]) -> Iterator[Column]:
        return (column for column in columns if any(getattr(row, column.key) is not None for row in rows))

    columns = [
        Column("graph", "graph", attrgetter("name"), may_break=True),
        STEP,
        number("95 % interval", of=_step_interval, rank=2),
        *with_values(_BEFORE_RATIO),
    ]
    if len(rows) > 1:
        columns.append(replace(RATIO, title=f"x {rows[0].name}, 95 % interval"))
    columns += [VERDICT, *with_values(_BEHIND_VERDICT)]
    columns += [
        Column("", f"speedup_{bound}", partial(_bound, bound), csv_only=True) for bound in ("low", "high")
    ]
    return Table(columns).fill(rows)


def _verdict(row: "BenchRow") -> Cell:
    word = row.verdict.value
    return Cell(word, word, verdict_style(word))


STEP = number("step", "step_us", lambda row: row.step_us and row.step_us.median, duration)
VERDICT = Column("verdict", "verdict", _verdict)


def _step_interval(row: "BenchRow") -> Cell:
    interval = row.step_us
    if interval is None:
        return Cell("-")
    unit, size = ("ms", 1000.0) if interval.median >= 1000 else ("us", 1.0)
    low, high = (f"{bound / size:,.2f}" for bound in (interval.low, interval.high))
    return Cell(f"{low} to {high} {unit}", style="dim")


def _bound(bound: str, row: "BenchRow") -> float | None:
    return None if row.speedup is None else float(getattr(row.speedup, bound))


def print_verification(verification: "Verification") -> None:
    """Print the measured step of each attempt and of what it is measured against; say what is returned."""
    console = stderr()
    if not verification.attempts:
        console.print("Nothing to verify: the plan changes nothing.")
        return
    for count, attempt in enumerate(verification.attempts, start=1):
        console.print(escape(_told(attempt, count)))
    if not verification.won:
        told = "No mixed step was faster, so FP32 is returned."
        if verification.returned.problem.starts_low:
            told = "No planned step was faster, so the file stays as it is."
        console.print(told, style="bold")


def _told(attempt: "Attempt", count: int) -> str:
    fp32, mixed = attempt.result.rows[:2]
    where = f"Measured on {attempt.result.machine.device}" if count == 1 else "Planned again and measured"
    if fp32.step_us is None or mixed.step_us is None or mixed.speedup is None:
        return f"{where}: the step does not run in {mixed.name}: {mixed.failure}"
    plan, problem = attempt.optimized.plan, attempt.optimized.problem
    predicted = problem.predicted_us(problem.low_unchanged) / plan.predicted_us
    return (
        f"{where}: {fp32.name} {duration(fp32.step_us.median)}, "
        f"{mixed.name} {duration(mixed.step_us.median)}: "
        f"{mixed.speedup.median:.2f}x, 95 % interval {mixed.speedup.low:.2f} to {mixed.speedup.high:.2f} "
        f"({mixed.verdict.value}); predicted {predicted:.2f}x."
    )
