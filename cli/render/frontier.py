"""The frontier of step time against error."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .comparison import headline
from .console import escape, stdout
from .plan import print_kind
from .table import Column, Table, TableFormat, number
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.emulation.frontier import Frontier

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
