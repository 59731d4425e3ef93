"""A plan: predicted times, casts, and the reason for each decision."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .console import escape, stdout
from .units import duration, gigabytes

if TYPE_CHECKING:
    from campo_onnx.optimize.plan import Decision, Plan, PlannedCast, PlannedPad
    from campo_onnx.optimize.report import Report
    from campo_onnx.optimize.traffic import Moved, Traffic

_OPS_SHOWN = 12


_MOVED_SHOWN = 6


def print_report(
    report: "Report", *, moved: tuple["Traffic", "Traffic"], output: Path, plan: Path | None
) -> None:
    """Print predicted times, casts, what is moved in FP32 and as planned, and what stayed FP32."""
    console, made = stdout(), report.plan
    console.print(_headline(made), style="bold")
    console.print(_totals(report))
    if loss := _loss(report):
        console.print(escape(loss), soft_wrap=True)
    if report.low_nodes:
        console.print(_ops_table(report))
    console.print(_moved_table(report, *moved))
    console.print(_kept_table(report))
    if report.unknown_ops:
        names = ", ".join(f"{op} {count}" for op, count in report.unknown_ops)
        console.print(
            f"On no list, kept FP32: {escape(names)}. --allow, --infer, --clear or --deny put them on one."
        )
    written = f"Wrote {output}" + (f" and {plan}" if plan else "")
    console.print(escape(written))


def _headline(plan: "Plan") -> str:
    known = "estimate from public figures" if plan.source == "datasheet" else plan.source
    return escape(f"{plan.device} ({known}), strategy {plan.strategy}, lists {plan.lists}, {plan.low.value}")


def _totals(report: "Report") -> Table:
    plan = report.plan
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    step = f"{duration(plan.fp32_us)} -> {duration(plan.predicted_us)}"
    verdict = (
        f"{plan.speedup:.2f}x" if report.casts_down + report.casts_up or report.low_nodes else "unchanged"
    )
    if plan.predicted_us > plan.fp32_us:
        verdict += ", slower than FP32; the default strategy, optimal, never is"
    table.add_row("predicted step", f"{step}  ({verdict})")
    table.add_row("nodes", f"{report.low_nodes} of {report.float_nodes} in {plan.low.value}")
    share = plan.cast_us / plan.predicted_us if plan.predicted_us else 0.0
    table.add_row(
        "casts",
        f"{len(plan.casts)} ({report.casts_down} to {plan.low.value}, {report.casts_up} back), "
        f"{duration(plan.cast_us)}, {share:.1%} of the step",
    )
    if plan.pads:
        gain_us = sum(pad.gain_us for pad in plan.pads)
        table.add_row(
            "zero-padded",
            f"{len(plan.pads)} nodes for tensor cores: kernels save {duration(gain_us)}, "
            f"pads and slices cost {duration(plan.pads_us)}",
        )
    return table


def _loss(report: "Report") -> str:
    """Say that low precision is slower, where that is why everything stays FP32."""
    fp32_us, low_us = report.changeable_us
    if report.low_nodes or low_us <= fp32_us:
        return ""
    plan = report.plan
    how = {"measure": "measured", "datasheet": "estimated"}.get(plan.source, "predicted")
    low = plan.low.value
    return (
        f"Everything stays in FP32: {low} is {how} to be slower on {plan.device}. The nodes whose time "
        f"changes take {duration(low_us)} in {low} and {duration(fp32_us)} in FP32, without casts."
    )


def _ops_table(report: "Report") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Where the time goes (without casts)", title_justify="left")
    table.add_column("operator")
    for column in (f"{report.plan.low.value} nodes", "fp32", "planned", "saved"):
        table.add_column(column, justify="right")
    rest = report.ops[_OPS_SHOWN:]
    for row in report.ops[:_OPS_SHOWN]:
        _add_ops(table, row.op_type, row.low_nodes, row.nodes, row.fp32_us, row.planned_us)
    if rest:
        fp32_us, planned_us = sum(r.fp32_us for r in rest), sum(r.planned_us for r in rest)
        low_nodes, nodes = sum(r.low_nodes for r in rest), sum(r.nodes for r in rest)
        _add_ops(table, f"{len(rest)} more operators", low_nodes, nodes, fp32_us, planned_us)
    return table


def _add_ops(table: Table, name: str, low_nodes: int, nodes: int, fp32_us: float, planned_us: float) -> None:
    saved = f"{(fp32_us - planned_us) / fp32_us:.0%}" if fp32_us else ""
    table.add_row(escape(name), f"{low_nodes}/{nodes}", duration(fp32_us), duration(planned_us), saved)


def _moved_table(report: "Report", given: "Traffic", planned: "Traffic") -> Table:
    """Show what launches and moves most, by kind of operator and by module."""
    table = Table(box=box.SIMPLE_HEAD, title="What is launched and moved a step", title_justify="left")
    table.add_column("by operator, by module")
    for column in ("launches", "fp32", "planned"):
        table.add_column(column, justify="right")
    low = report.plan.low.value
    _add_moved(table, "the whole step", given.total, planned.total)
    _add_moved(table, f"casts to and from {low}", given.casts, planned.casts)
    for family in [*given.by_family][:_MOVED_SHOWN]:
        _add_moved(table, family.value, given.by_family[family], planned.by_family.get(family))
    table.add_section()
    for module in [m for m in given.by_module if m][:_MOVED_SHOWN]:
        _add_moved(table, module, given.by_module[module], planned.by_module.get(module))
    table.add_section()
    _add_moved(table, "if neighbouring pointwise nodes were one kernel", given.fused, planned.fused)
    table.add_row("tensors alive at most", "", gigabytes(given.peak_bytes), gigabytes(planned.peak_bytes))
    return table


def _add_moved(table: Table, name: str, given: "Moved", planned: "Moved | None") -> None:
    if planned is None:
        return
    same = given.launches == planned.launches
    launches = f"{given.launches:,}" if same else f"{given.launches:,} -> {planned.launches:,}"
    table.add_row(escape(name), launches, gigabytes(given.moved_bytes), gigabytes(planned.moved_bytes))


def _kept_table(report: "Report") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What stayed FP32, and why", title_justify="left")
    table.add_column("why", max_width=56)
    table.add_column("nodes", justify="right")
    table.add_column("time", justify="right")
    table.add_column("operators")
    for row in report.kept:
        table.add_row(escape(row.why), str(row.nodes), duration(row.fp32_us), escape(row.op_types))
    return table


def print_decisions(plan: "Plan", decisions: Sequence["Decision"]) -> None:
    """Print some decisions of a plan as sentences, one per line."""
    console = stdout()
    console.print(_headline(plan), style="bold")
    console.print("The decisions with the largest effect:")
    for d in decisions:
        took = f"{duration(d.fp32_us)} in fp32, {duration(d.low_us)} in {plan.low.value}"
        console.print(
            escape(f"  {d.node} ({d.op_type}) runs in {_precision(d)}: {took}. Reason: {d.reason}."),
            soft_wrap=True,
        )


def print_decision(
    plan: "Plan", decision: "Decision", casts: Sequence["PlannedCast"], pad: "PlannedPad | None"
) -> None:
    """Print one decision in full."""
    console = stdout()
    console.print(_headline(plan), style="bold")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("node", f"{escape(decision.node)} ({escape(decision.op_type)}, {decision.op_class.value})")
    table.add_row("precision", _precision(decision))
    table.add_row("decided by", decision.decided_by.value)
    table.add_row("reason", escape(decision.reason))
    table.add_row("in fp32", duration(decision.fp32_us))
    table.add_row(f"in {plan.low.value}", f"{duration(decision.low_us)}, without casts")
    if pad is not None:
        table.add_row(
            "padded", f"its kernel saves {duration(pad.gain_us)}, pads cost {duration(pad.pads_us)}"
        )
    table.add_row("casts", f"{duration(decision.cast_us)} at its inputs and outputs")
    for cast in casts:
        where = "output" if cast.producer == decision.node else "input"
        shared = f", shared by {len(cast.consumers)} consumers" if len(cast.consumers) > 1 else ""
        which = f"{cast.src.value} -> {cast.dst.value}, {duration(cast.cast_us)}"
        table.add_row("", escape(f"{cast.tensor} ({where}{shared}): {which}"))
    console.print(table)


def _precision(decision: "Decision") -> str:
    return "-" if decision.precision is None else decision.precision.value
