"""A plan: predicted times, casts, and the reason for each decision."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, is_verbose, stdout
from .table import Cell, Column, Table, TableFormat, facts_table
from .units import duration, gigabytes

if TYPE_CHECKING:
    from campo_onnx.ir.stamp import Stamp
    from campo_onnx.optimize.graph_kind import GraphKind
    from campo_onnx.optimize.plan.edits import Decision, PlannedCast, PlannedPad
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.optimize.plan.report import Report
    from campo_onnx.optimize.plan.rules import RulePrices
    from campo_onnx.optimize.traffic import Moved, Traffic
    from campo_onnx.planning.pipeline import Optimized

_OPS_SHOWN = 12
_MOVED_SHOWN = 6


def print_optimized(optimized: "Optimized", *, written: Sequence[Path], advice: Sequence[str]) -> None:
    """Print what was decided; of a graph that was optimized before, where it was written."""
    from campo_onnx.optimize.plan.report import report_of

    if optimized.was_optimized_before:
        print_kind(optimized.problem.kind)
        _print_written(written)
        return
    moved = optimized.given_traffic, optimized.planned_traffic
    print_kind(optimized.problem.kind)
    report = report_of(optimized.plan)
    print_report(report, moved=moved, written=written, advice=advice, as_given_us=optimized.as_given_us)


def print_kind(kind: "GraphKind") -> None:
    """Print what the graph is, and what follows from it, as the first line."""
    stdout().print(escape(kind.told), soft_wrap=True)


def recorded(stamp: "Stamp") -> str:
    """Say what was predicted when a graph was written; nothing where the graph does not tell."""
    if stamp.fp32_us is None or stamp.predicted_us is None:
        return ""
    speedup = stamp.fp32_us / stamp.predicted_us if stamp.predicted_us else 1.0
    step = f"{duration(stamp.fp32_us)} -> {duration(stamp.predicted_us)}, {speedup:.2f}x"
    return f"; predicted then: {step}, {stamp.low_nodes} nodes in {stamp.low}, {stamp.casts} casts"


def print_report(
    report: "Report",
    *,
    moved: tuple["Traffic", "Traffic"],
    written: Sequence[Path],
    advice: Sequence[str] = (),
    as_given_us: float | None = None,
) -> None:
    """Print predicted times, casts, and what stayed FP32.

    Parameters
    ----------
    moved
        What the step launches and moves in FP32 and as planned; in full with --verbose.
    as_given_us
        Predicted step of the given file, where that is not FP32's.
    """
    console, plan = stdout(), report.plan
    console.print(_headline(plan), style="bold")
    changes = bool(report.low_nodes or plan.casts)
    in_full = changes or is_verbose() or not advice  # else what would help is all there is to know
    facts_table(_totals(report, *moved, as_given_us)[: None if in_full else 1])
    if loss := _loss(report, becomes=as_given_us is not None):
        console.print(escape(loss), soft_wrap=True)
    for sentence in advice:
        console.print(escape(f"- {sentence}"), soft_wrap=True)
    if report.low_nodes:
        _ops_table(report).show()
    if is_verbose():
        _moved_table(report, *moved).show()
    if report.kept and in_full:
        _kept_table(report).show()
    if report.plan.rules is not None:
        print_rules(report.plan.rules, only_binding=not is_verbose())
    if report.unknown_ops:
        names = ", ".join(f"{op} {count}" for op, count in report.unknown_ops)
        console.print(
            f"On no list, kept FP32: {escape(names)}. --allow, --infer, --clear or --deny put them on one.",
            soft_wrap=True,
        )
    _print_written(written)


def print_rules(
    rules: "RulePrices", *, only_binding: bool = False, form: TableFormat = TableFormat.TEXT
) -> None:
    """Print what each rule costs; those that cost nothing as a number, if only binding ones are wanted."""
    table = Table(
        (
            Column(title="price", key="price_us", is_number=True),
            Column(title="of the step", key="share", is_number=True, rank=1),
            Column(title="nodes", key="nodes", is_number=True, rank=2),
            Column(title="error without", key="error", is_number=True, rank=1),
            Column(title="rule", key="rule", may_break=True, least=30),
        ),
        title="" if form is not TableFormat.TEXT else "What each rule costs, solved again without it",
    )
    shown = [price for price in rules.prices if price.price_us or not only_binding]
    for price in shown:
        share = price.price_us / rules.predicted_us if rules.predicted_us else 0.0
        error = "not finite" if price.breaks else "-" if price.error is None else f"{price.error:.2g}"
        table.add(
            Cell(duration(price.price_us), price.price_us),
            Cell(f"{share:.1%}", share),
            Cell(str(price.nodes), price.nodes),
            Cell(error, price.error),
            price.title,
        )
    if shown or form is not TableFormat.TEXT:
        table.show(form)
    if form is not TableFormat.TEXT:
        return
    console = stdout()
    if not any(price.price_us for price in rules.prices):
        console.print("No rule costs anything: the step is predicted no faster without any one of them.")
    elif free := len(rules.prices) - len(shown):
        console.print(f"{free} more {'rules cost' if free > 1 else 'rule costs'} nothing.")
    if rules.error is not None:
        console.print(f"With all rules the error on the batches is {rules.error:.2g}, emulated.")


def _print_written(written: Sequence[Path]) -> None:
    names = [str(path) for path in written]
    *others, last = names or [""]
    told = f"Wrote {', '.join(others)}{' and ' if others else ''}{last}"
    stdout().print(escape(told if names else "Nothing was written (--dry-run)."), soft_wrap=True)


def _headline(plan: "Plan") -> str:
    how = f"strategy {plan.strategy}, lists {plan.lists}, {plan.low.value}"
    return escape(f"{plan.where} ({cost_basis(plan.source)}), {how}")


def _totals(
    report: "Report", original: "Traffic", planned: "Traffic", as_given_us: float | None
) -> list[tuple[str, str]]:
    plan = report.plan
    step = f"{duration(plan.fp32_us)} -> {duration(plan.predicted_us)}"
    is_changed = report.casts_down + report.casts_up or report.low_nodes
    verdict = f"{plan.speedup:.2f}x" if is_changed else "unchanged"
    if plan.predicted_us > plan.fp32_us:
        verdict += ", slower than FP32; the default strategy, optimal, never is"
    if as_given_us is not None:
        step = f"{duration(as_given_us)} -> {duration(plan.predicted_us)}"
        ratio = as_given_us / plan.predicted_us if plan.predicted_us else 1.0
        verdict = f"{ratio:.2f}x the file's speed; in FP32 {duration(plan.fp32_us)}"
    share = plan.cast_us / plan.predicted_us if plan.predicted_us else 0.0
    low = plan.low.value
    others = "".join(f", {count} in {each.value} already" for each, count in report.other_low)
    rows = [
        ("predicted step", f"{step}  ({verdict})"),
        ("nodes", f"{report.low_nodes} of {report.float_nodes} in {low}{others}"),
        (
            "casts",
            f"{len(plan.casts)} ({report.casts_down} to {low}, {report.casts_up} back), "
            f"{duration(plan.cast_us)}, {share:.1%} of the step",
        ),
        ("launches, bytes", f"{_change(original.total, planned.total)}"),
    ]
    if plan.pads:
        gain_us = sum(pad.gain_us for pad in plan.pads)
        kernels = f"kernels save {duration(gain_us)}, pads and slices cost {duration(plan.pads_us)}"
        rows.append(("zero-padded", f"{len(plan.pads)} nodes for tensor cores: {kernels}"))
    return rows


def _change(original: "Moved", planned: "Moved") -> str:
    bytes_moved = f"{gigabytes(original.moved_bytes)} -> {gigabytes(planned.moved_bytes)}"
    return f"{_launches(original, planned)}, {bytes_moved}"


def _launches(original: "Moved", planned: "Moved") -> str:
    same = original.launches == planned.launches
    return f"{original.launches:,}" if same else f"{original.launches:,} -> {planned.launches:,}"


def _loss(report: "Report", *, becomes: bool) -> str:
    """Say that low precision is slower, where that is why everything stays, or becomes, FP32."""
    fp32_us, low_us = report.changeable_us
    if report.low_nodes or low_us <= fp32_us:
        return ""
    plan = report.plan
    how = {"measure": "measured", "datasheet": "estimated"}.get(plan.source, "predicted")
    low = plan.low.value
    return (
        f"Everything {'becomes' if becomes else 'stays in'} FP32: {low} is {how} to be slower on "
        f"{plan.device}. The nodes whose time "
        f"changes take {duration(low_us)} in {low} and {duration(fp32_us)} in FP32, without casts."
    )


def _ops_table(report: "Report") -> Table:
    table = Table(
        (
            Column(title="operator", may_break=True),
            Column(title=f"{report.plan.low.value} nodes", is_number=True),
            Column(title="fp32", is_number=True, rank=1),
            Column(title="planned", is_number=True),
            Column(title="saved", is_number=True),
        ),
        title="Where the time goes (without casts)",
    )
    shown = len(report.ops) if is_verbose() else _OPS_SHOWN
    rest = report.ops[shown:]
    for row in report.ops[:shown]:
        _add_ops(table, row.op_type, row.low_nodes, row.nodes, row.fp32_us, row.planned_us)
    if rest:
        fp32_us, planned_us = sum(r.fp32_us for r in rest), sum(r.planned_us for r in rest)
        low_nodes, nodes = sum(r.low_nodes for r in rest), sum(r.nodes for r in rest)
        _add_ops(table, f"{len(rest)} more operators", low_nodes, nodes, fp32_us, planned_us)
    return table


def _add_ops(table: Table, name: str, low_nodes: int, nodes: int, fp32_us: float, planned_us: float) -> None:
    saved = f"{(fp32_us - planned_us) / fp32_us:.0%}" if fp32_us else ""
    table.add(name, f"{low_nodes}/{nodes}", duration(fp32_us), duration(planned_us), saved)


def _moved_table(report: "Report", original: "Traffic", planned: "Traffic") -> Table:
    """Show what launches and moves most, by kind of operator and by module."""
    table = Table(
        (
            Column(title="by operator, by module", may_break=True),
            Column(title="launches", is_number=True),
            Column(title="fp32", is_number=True),
            Column(title="planned", is_number=True),
        ),
        title="What is launched and moved a step",
    )
    low = report.plan.low.value
    _add_moved(table, "the whole step", original.total, planned.total)
    _add_moved(table, f"casts to and from {low}", original.casts, planned.casts)
    for family in [*original.by_family][:_MOVED_SHOWN]:
        _add_moved(table, family.value, original.by_family[family], planned.by_family.get(family))
    for module in [m for m in original.by_module if m][:_MOVED_SHOWN]:
        _add_moved(table, module, original.by_module[module], planned.by_module.get(module))
    _add_moved(table, "if neighbouring pointwise nodes were one kernel", original.fused, planned.fused)
    table.add("tensors alive at most", "", gigabytes(original.peak_bytes), gigabytes(planned.peak_bytes))
    return table


def _add_moved(table: Table, name: str, original: "Moved", planned: "Moved | None") -> None:
    if planned is None:
        return
    moved = gigabytes(original.moved_bytes), gigabytes(planned.moved_bytes)
    table.add(name, _launches(original, planned), *moved)


def _kept_table(report: "Report") -> Table:
    table = Table(
        (
            Column(title="why", may_break=True),
            Column(title="nodes", is_number=True),
            Column(title="time", is_number=True),
            Column(title="operators", may_break=True, rank=1),
        ),
        title="What stayed FP32, and why",
    )
    for row in report.kept:
        table.add(row.why, str(row.nodes), duration(row.fp32_us), row.op_types)
    return table


def print_decisions(
    plan: "Plan", decisions: Sequence["Decision"], *, form: TableFormat = TableFormat.TEXT
) -> None:
    """Print some decisions of a plan, one a row."""
    table = Table(
        (
            Column(title="node", key="node", may_break=True, least=32),
            Column(title="", key="module", csv_only=True),
            Column(title="operator", key="op_type", may_break=True, rank=1),
            Column(title="class", key="op_class", rank=4),
            Column(title="runs in", key="precision"),
            Column(title="fp32", key="fp32_us", is_number=True, rank=2),
            Column(title=plan.low.value, key="low_us", is_number=True, rank=2),
            Column(title="gain", key="gain_us", is_number=True),
            Column(title="casts", key="cast_us", is_number=True, rank=3),
            Column(title="", key="decided_by", csv_only=True),
            Column(title="why", key="reason", may_break=True, least=28),
        )
    )
    for d in decisions:
        table.add(
            d.node,
            ".".join(d.modules[-1:]),
            d.op_type,
            d.op_class.value,
            _precision(d),
            *(Cell(duration(us), us) for us in (d.fp32_us, d.low_us, d.gain_us, d.cast_us)),
            d.decided_by.value,
            d.reason,
        )
    if form is TableFormat.TEXT:
        console = stdout()
        console.print(_headline(plan), style="bold")
        few = len(decisions) < len(plan.decisions)
        console.print("The decisions with the largest effect:" if few else "All decisions:")
    table.show(form)
    if form is TableFormat.TEXT:
        stdout().print("`campo-onnx explain PLAN NODE` shows one node with its casts.", style="dim")


def print_decision(
    plan: "Plan",
    decision: "Decision",
    casts: Sequence["PlannedCast"],
    pad: "PlannedPad | None",
    why: Sequence[str],
) -> None:
    """Print one decision in full, with sentences that say why."""
    console = stdout()
    console.print(_headline(plan), style="bold")
    rows = [
        ("node", f"{decision.node} ({decision.op_type}, {decision.op_class.value})"),
        *([("module", f"{decision.module} ({decision.kind})")] if decision.module else []),
        *([("source line", decision.source)] if decision.source else []),
        ("precision", _precision(decision)),
        ("decided by", decision.decided_by.value),
        ("reason", decision.reason),
        ("in fp32", duration(decision.fp32_us)),
        (f"in {plan.low.value}", f"{duration(decision.low_us)}, without casts"),
    ]
    if pad is not None:
        saved = f"its kernel saves {duration(pad.gain_us)}, pads cost {duration(pad.pads_us)}"
        rows.append(("padded", saved))
    rows.append(("casts", f"{duration(decision.cast_us)} at its inputs and outputs"))
    for cast in casts:
        where = "output" if cast.producer == decision.node else "input"
        shared = f", shared by {len(cast.consumers)} consumers" if len(cast.consumers) > 1 else ""
        which = f"{cast.src.value} -> {cast.dst.value}, {duration(cast.cast_us)}"
        rows.append(("", f"{cast.tensor} ({where}{shared}): {which}"))
    facts_table(rows)
    for sentence in why:
        console.print(escape(f"- {sentence}"), soft_wrap=True)


def _precision(decision: "Decision") -> str:
    return "-" if decision.precision is None else decision.precision.value
