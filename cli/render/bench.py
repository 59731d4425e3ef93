"""A benchmark: the step of each graph, with confidence intervals and verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .console import escape, stderr, stdout
from .units import duration, gigabytes

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchResult, BenchRow, Interval

_STYLES = {"faster": "green", "slower": "bold red", "failed": "bold red", "not compared": "yellow"}


def print_bench(result: "BenchResult") -> None:
    """Print one row per graph, and notes."""
    console, machine = stdout(), result.machine
    plural = "" if machine.threads == 1 else "s"
    threads = f", {machine.threads} thread{plural}" if machine.threads else ""
    precision = ", FP32 products as TF32" if machine.tf32 else ""
    rounds = f"{result.steps} rounds" + (", interrupted" if result.interrupted else "")
    console.print(
        escape(
            f"{machine.device} ({machine.provider}{threads}), ONNX Runtime {machine.ort}{precision}: {rounds}"
        ),
        style="bold",
    )
    console.print(_table(result))
    if machine.provider == "cuda":
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


def print_written(*paths: Path | None) -> None:
    """Print which files were written."""
    written = [str(path) for path in paths if path is not None]
    if written:
        stdout().print(escape(f"Wrote {' and '.join(written)}"))


def _table(result: "BenchResult") -> Table:
    rows = result.rows
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("graph", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    columns = ["samples/s"] if any(row.samples_per_s is not None for row in rows) else []
    columns += [f"x {escape(rows[0].name)}"] if len(rows) > 1 else []
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("verdict", no_wrap=True)
    optional = {
        "launches": [row.launches is not None for row in rows],
        "moved": [row.moved_bytes is not None for row in rows],
        "energy": [row.energy_j is not None for row in rows],
        "memory": [row.peak_bytes is not None for row in rows],
        "tensor cores": [row.tensor_pipe_share is not None for row in rows],
    }
    shown = [name for name, known in optional.items() if any(known)]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [escape(row.name), _step(row.step_us)]
        if "samples/s" in columns:
            cells.append("-" if row.samples_per_s is None else f"{row.samples_per_s:,.4g}")
        if len(rows) > 1:
            cells.append(_ratio(row.speedup))
        cells.append(_styled(row.verdict.value))
        counts = {
            "launches": "-" if row.launches is None else f"{row.launches:,}",
            "moved": "-" if row.moved_bytes is None else gigabytes(row.moved_bytes),
        }
        extras = counts | {"energy": _energy(row), "memory": _memory(row), "tensor cores": _share(row)}
        table.add_row(*cells, *(extras[name] for name in shown))
    return table


def _styled(verdict: str) -> str:
    style = _STYLES.get(verdict)
    return f"[{style}]{verdict}[/{style}]" if style else verdict


def _step(interval: "Interval | None") -> str:
    if interval is None:
        return "-"
    unit, size = ("ms", 1000.0) if interval.median >= 1000 else ("us", 1.0)
    low, high = (f"{bound / size:,.2f}" for bound in (interval.low, interval.high))
    return f"{duration(interval.median)} [dim]({low} to {high} {unit})[/dim]"


def _ratio(interval: "Interval | None") -> str:
    if interval is None:
        return "-"
    return f"{interval.median:.3f} [dim]({interval.low:.3f} to {interval.high:.3f})[/dim]"


def _energy(row: "BenchRow") -> str:
    interval = row.energy_j
    if interval is None:
        return "-"
    return f"{interval.median:.3g} J [dim]({interval.low:.3g} to {interval.high:.3g})[/dim]"


def _memory(row: "BenchRow") -> str:
    return "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f} MiB"


def _share(row: "BenchRow") -> str:
    return "-" if row.tensor_pipe_share is None else f"{row.tensor_pipe_share:.0%}"
