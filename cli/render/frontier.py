"""The frontier of step time against error."""

from typing import TYPE_CHECKING

from .comparison import headline
from .console import escape, stdout
from .plan import print_kind
from .table import Cell, Column, Table, TableFormat
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.emulation.frontier import Frontier
    from campo_onnx.planning.frontier import FrontierPlan

_COLUMNS = (
    Column(title="predicted", key="predicted_us", is_number=True),
    Column(title="x fp32", key="predicted_speedup", is_number=True),
    Column(title="error, predicted", key="predicted_error", is_number=True),
    Column(title="error, emulated", key="emulated_error", is_number=True),
    Column(title="low", key="low_nodes", is_number=True, rank=1),
    Column(title="casts", key="casts", is_number=True, rank=2),
    Column(title="proved least", key="bound_us", is_number=True, rank=3),
)


def print_frontier(result: "Frontier", form: TableFormat) -> None:
    """Print every point; on the screen those in between that were not emulated are left out."""
    table = Table(_COLUMNS)
    for one in result.plans:
        if form is not TableFormat.TEXT or one.emulated_error is not None:
            table.add(*_cells(one))
    if form is not TableFormat.TEXT:
        table.show(form)
        return
    console = stdout()
    print_kind(result.problem.kind)
    console.print(escape(headline(result.plans[0].plan)), style="bold")
    table.show()
    for line in result.sentences:
        console.print(escape(line))


def _cells(one: "FrontierPlan") -> tuple[Cell, ...]:
    plan, point = one.plan, one.point
    emulated = one.emulated_error
    return (
        Cell(duration(plan.predicted_us), plan.predicted_us),
        Cell(f"{plan.speedup:.2f}", plan.speedup),
        Cell(f"{point.error:.2g}", point.error),
        Cell("-") if emulated is None else Cell(f"{emulated:.2g}", emulated),
        Cell(str(len(plan.low_nodes)), len(plan.low_nodes)),
        Cell(str(len(plan.casts)), len(plan.casts)),
        Cell(duration(point.bound_us), point.bound_us),
    )
