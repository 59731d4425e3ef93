"""The frontier of step time against error."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .comparison import headline
from .console import escape, stdout
from .plan import print_kind
from .table import Cell, Column, Table, TableFormat
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.emulation.frontier import Frontier
    from campo_onnx.planning.frontier import FrontierPlan

_FORMAT = Column(title="format", key="low")
_BEST = Column(title="best of all", key="best_of_all", rank=1)
_COLUMNS = (
    Column(title="predicted", key="predicted_us", is_number=True),
    Column(title="x fp32", key="predicted_speedup", is_number=True),
    Column(title="error, predicted", key="predicted_error", is_number=True),
    Column(title="error, emulated", key="emulated_error", is_number=True),
    Column(title="low", key="low_nodes", is_number=True, rank=1),
    Column(title="casts", key="casts", is_number=True, rank=2),
    Column(title="proved least", key="bound_us", is_number=True, rank=3),
)


def print_frontiers(results: Sequence["Frontier"], form: TableFormat) -> None:
    """Print every point of a frontier for each format; on the screen only those that were emulated."""
    from campo_onnx.planning.frontier import envelope

    several = len(results) > 1
    rows = [one for result in results for one in result.plans]
    best = envelope(rows)
    table = Table((_FORMAT, *_COLUMNS, _BEST) if several else _COLUMNS)
    for one in rows:
        if form is TableFormat.TEXT and one.emulated_error is None:
            continue
        is_best = one in best
        beside = Cell("*" if is_best else "", is_best)
        cells: tuple[str | Cell, ...] = _cells(one)
        table.add(*((one.low.name, *cells, beside) if several else cells))
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


def _cells(one: "FrontierPlan") -> tuple[Cell, ...]:
    point, emulated = one.point, one.emulated_error
    low_nodes, casts = one.low_nodes, one.casts
    return (
        Cell(duration(point.time_us), point.time_us),
        Cell(f"{one.speedup:.2f}", one.speedup),
        Cell(f"{point.error:.2g}", point.error),
        Cell("-") if emulated is None else Cell(f"{emulated:.2g}", emulated),
        Cell(str(low_nodes), low_nodes),
        Cell(str(casts), casts),
        Cell(duration(point.bound_us), point.bound_us),
    )
