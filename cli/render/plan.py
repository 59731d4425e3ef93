"""A plan: predicted times, casts, and the reason for each decision."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.wording import cost_basis

from .console import escape, is_verbose, stdout
from .table import Cell, Column, Table, TableFormat, facts_table, number
from .units import duration, gigabytes

if TYPE_CHECKING:
    from campo_onnx.ir.stamp import Stamp
    from campo_onnx.optimize.graph_kind import GraphKind
    from campo_onnx.optimize.plan.edits import Decision, PlannedCast, PlannedPad
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.optimize.plan.report import OpRow, Report
    from campo_onnx.optimize.plan.rules import RulePrice, RulePrices
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

    `moved` is what the step launches and moves in FP32 and as planned, in full with --verbose; `as_given_us`
    the predicted step of the given file, where that is not FP32's.
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
    shown = [price for price in rules.prices if price.price_us or not only_binding]
    whole_us = rules.predicted_us
    table = Table(
        (
            number("price", "price_us", lambda price: price.price_us, duration),
            number(
                "of the step",
                "share",
                lambda price: price.price_us / whole_us if whole_us else 0.0,
                "{:.1%}".format,
                rank=1,
            ),
            number("nodes", "nodes", lambda price: price.nodes, rank=2),
            number("error without", "error", _error_without, rank=1),
            Column("rule", "rule", lambda price: price.title, may_break=True, least=30),
        ),
        title="" if form is not TableFormat.TEXT else "What each rule costs, solved again without it",
    ).fill(shown)
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


def _error_without(price: "RulePrice") -> Cell:
    error = "not finite" if price.breaks else "-" if price.error is None else f"{price.error:.2g}"
    return Cell(error, price.error)


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
    shown = len(report.ops) if is_verbose() else _OPS_SHOWN
    rows, rest = list(report.ops[:shown]), report.ops[shown:]
    if rest:
        summed = {name: sum(getattr(row, name) for row in rest) for name in _SUMMED}
        rows.append(replace(rest[0], op_type=f"{len(rest)} more operators", **summed))
    return Table(
        (
            Column("operator", of=lambda row: row.op_type, may_break=True),
            number(f"{report.plan.low.value} nodes", of=lambda row: f"{row.low_nodes}/{row.nodes}"),
            number("fp32", of=lambda row: row.fp32_us, text=duration, rank=1),
            number("planned", of=lambda row: row.planned_us, text=duration),
            number("saved", of=_saved),
        ),
        title="Where the time goes (without casts)",
    ).fill(rows)


_SUMMED = ("low_nodes", "nodes", "fp32_us", "planned_us")


def _saved(row: "OpRow") -> str:
    return f"{(row.fp32_us - row.planned_us) / row.fp32_us:.0%}" if row.fp32_us else ""


def _moved_table(report: "Report", original: "Traffic", planned: "Traffic") -> Table:
    """Show what launches and moves most, by kind of operator and by module."""
    low = report.plan.low.value
    pairs: list[tuple[str, Moved, Moved | None]] = [
        ("the whole step", original.total, planned.total),
        (f"casts to and from {low}", original.casts, planned.casts),
    ]
    families = [*original.by_family][:_MOVED_SHOWN]
    pairs += [(f.value, original.by_family[f], planned.by_family.get(f)) for f in families]
    modules = [m for m in original.by_module if m][:_MOVED_SHOWN]
    pairs += [(m, original.by_module[m], planned.by_module.get(m)) for m in modules]
    pairs.append(("if neighbouring pointwise nodes were one kernel", original.fused, planned.fused))
    rows = [
        (name, _launches(before, after), gigabytes(before.moved_bytes), gigabytes(after.moved_bytes))
        for name, before, after in pairs
        if after is not None
    ]
    rows.append(("tensors alive at most", "", gigabytes(original.peak_bytes), gigabytes(planned.peak_bytes)))
    return Table(
        (
            Column("by operator, by module", of=itemgetter(0), may_break=True),
            *(number(title, of=itemgetter(i)) for i, title in enumerate(("launches", "fp32", "planned"), 1)),
        ),
        title="What is launched and moved a step",
    ).fill(rows)


def _kept_table(report: "Report") -> Table:
    return Table(
        (
            Column("why", of=lambda row: row.why, may_break=True),
            number("nodes", of=lambda row: row.nodes),
            number("time", of=lambda row: row.fp32_us, text=duration),
            Column("operators", of=lambda row: row.op_types, may_break=True, rank=1),
        ),
        title="What stayed FP32, and why",
    ).fill(report.kept)


def print_decisions(
    plan: "Plan", decisions: Sequence["Decision"], *, form: TableFormat = TableFormat.TEXT
) -> None:
    """Print some decisions of a plan, one a row."""
    table = Table(
        (
            Column("node", "node", lambda d: d.node, may_break=True, least=32),
            Column("", "module", lambda d: ".".join(d.modules[-1:]), csv_only=True),
            Column("operator", "op_type", lambda d: d.op_type, may_break=True, rank=1),
            Column("class", "op_class", lambda d: d.op_class.value, rank=4),
            Column("runs in", "precision", _precision),
            number("fp32", "fp32_us", lambda d: d.fp32_us, duration, rank=2),
            number(plan.low.value, "low_us", lambda d: d.low_us, duration, rank=2),
            number("gain", "gain_us", lambda d: d.gain_us, duration),
            number("casts", "cast_us", lambda d: d.cast_us, duration, rank=3),
            Column("", "decided_by", lambda d: d.decided_by.value, csv_only=True),
            Column("why", "reason", lambda d: d.reason, may_break=True, least=28),
        )
    ).fill(decisions)
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
