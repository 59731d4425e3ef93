"""Everything the program prints. Results go to stdout, the rest to stderr."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration
    from campo_onnx.calibrate.device import Device
    from campo_onnx.calibrate.profile import Profile
    from campo_onnx.checking.verdict import Verdicts
    from campo_onnx.comparison import Comparison
    from campo_onnx.optimize.plan import Decision, Plan, PlannedCast, PlannedPad
    from campo_onnx.optimize.report import Report
    from campo_onnx.training.data_safety import Judgement

_OPS_SHOWN = 12
_PIPED_WIDTH = 110


def _stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line of result."""
    _stdout().print(escape(text))


def print_json(text: str) -> None:
    """Print a document as it is."""
    sys.stdout.write(text)


def print_note(text: str) -> None:
    """Tell the user something beside the result."""
    _stderr().print(escape(text), style="dim")


def print_error(message: str) -> None:
    """Print an error: one message."""
    _stderr().print(f"[bold red]error:[/bold red] {escape(message)}")


def print_bug(error: Exception, traceback_variable: str) -> None:
    """Print an error that is ours."""
    _stderr().print(
        f"[bold red]bug:[/bold red] {escape(type(error).__name__)}: {escape(str(error))}\n"
        f"This is a fault of campo-onnx, not of your model. Set {traceback_variable}=1 for the traceback "
        "to report."
    )


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something goes on, while it does."""
    with _stderr().status(escape(what)):
        yield


@contextmanager
def progressing(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with the remaining time; yields what takes steps done and in all."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=_stderr(), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(escape(what), total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield advance


def print_report(report: "Report", *, output: Path, plan: Path | None) -> None:
    """Print what was won, what casts cost, and what stayed FP32."""
    console, made = _stdout(), report.plan
    console.print(_headline(made), style="bold")
    console.print(_totals(report))
    if report.low_nodes:
        console.print(_ops_table(report))
    console.print(_kept_table(report))
    if report.unknown_ops:
        names = ", ".join(f"{op} {count}" for op, count in report.unknown_ops)
        console.print(
            f"Unknown to the lists, kept FP32: {escape(names)}. Class them with --allow, --infer, ..."
        )
    written = f"Wrote {output}" + (f" and {plan}" if plan else "")
    console.print(escape(written))


def _headline(plan: "Plan") -> str:
    known = "estimate from public figures" if plan.source == "datasheet" else plan.source
    return escape(f"{plan.device} ({known}), strategy {plan.strategy}, lists {plan.lists}, {plan.low}")


def _totals(report: "Report") -> Table:
    plan = report.plan
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    step = f"{_time(plan.fp32_us)} -> {_time(plan.predicted_us)}"
    verdict = (
        f"{plan.speedup:.2f}x" if report.casts_down + report.casts_up or report.low_nodes else "unchanged"
    )
    if plan.predicted_us > plan.fp32_us:
        verdict += ", slower than FP32: optimal and campo would not do this"
    table.add_row("predicted step", f"{step}  ({verdict})")
    table.add_row("nodes", f"{report.low_nodes} of {report.float_nodes} in {plan.low}")
    share = plan.cast_us / plan.predicted_us if plan.predicted_us else 0.0
    table.add_row(
        "casts",
        f"{len(plan.casts)} ({report.casts_down} to {plan.low}, {report.casts_up} back), "
        f"{_time(plan.cast_us)}, {share:.1%} of the step",
    )
    if plan.pads:
        gain_us = sum(pad.gain_us for pad in plan.pads)
        table.add_row(
            "zero-padded",
            f"{len(plan.pads)} for tensor cores: kernels save {_time(gain_us)}, "
            f"pads and slices cost {_time(plan.pads_us)}",
        )
    return table


def _ops_table(report: "Report") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Where the time goes (casts apart)", title_justify="left")
    table.add_column("operator")
    for column in (f"{report.plan.low} nodes", "fp32", "planned", "saved"):
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
    table.add_row(escape(name), f"{low_nodes}/{nodes}", _time(fp32_us), _time(planned_us), saved)


def _kept_table(report: "Report") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What stayed FP32, and why", title_justify="left")
    table.add_column("why", max_width=56)
    table.add_column("nodes", justify="right")
    table.add_column("time", justify="right")
    table.add_column("operators")
    for row in report.kept:
        table.add_row(escape(row.why), str(row.nodes), _time(row.fp32_us), escape(row.op_types))
    return table


def print_comparison(comparison: "Comparison", *, plot: Path | None) -> None:
    """Print strategies side by side."""
    console, baseline_us = _stdout(), comparison.baseline.plan.predicted_us
    first = comparison.rows[0].plan
    known = "estimates from public figures" if first.source == "datasheet" else first.source
    console.print(escape(f"{first.device} ({known}), {first.low}"), style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    baseline = comparison.baseline.plan
    for column in ("strategy", "lists"):
        table.add_column(column, no_wrap=True)
    for column in ("low", "casts", "cast time", "predicted", "x fp32"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in (f"x {baseline.strategy} {baseline.lists}", "tensor cores", "measured"):
        table.add_column(column, justify="right")
    for row in comparison.rows:
        plan = row.plan
        table.add_row(
            plan.strategy,
            escape(plan.lists),
            str(len(plan.low_nodes)),
            str(len(plan.casts)),
            _time(plan.cast_us),
            _time(plan.predicted_us),
            f"{plan.speedup:.2f}",
            f"{baseline_us / plan.predicted_us:.2f}",
            f"{row.tensor_core_share:.0%}",
            "-" if row.measured_us is None else _time(row.measured_us),
            style="bold" if plan.strategy == "optimal" else None,
        )
    console.print(table)
    if plot is not None:
        console.print(escape(f"Wrote {plot}"))


def print_judgement(judgement: "Judgement", budget: float) -> None:
    """Tell what the data forbade and released, and what that is worth."""
    console = _stderr()
    worst = max(judgement.drift_after, key=lambda name: judgement.drift_after[name])
    console.print(
        escape(
            f"On the data: {len(judgement.forbidden)} nodes forbidden, {len(judgement.released)} released "
            f"from taint, worth {_time(judgement.gain_us)} a step. The largest error of an output, emulated, "
            f"is {judgement.drift_after[worst]:.2g} ({worst}); the budget is {budget:g}."
        ),
        style="dim",
    )
    beyond = [name for name, error in judgement.drift_before.items() if error > budget]
    if beyond:
        console.print(
            escape(
                f"{len(beyond)} outputs exceed the budget by the lists alone; no release was accepted that "
                "adds more than rounding noise to them. A loss scale in the graph helps gradients that "
                "vanish."
            ),
            style="dim",
        )


def print_decisions(plan: "Plan", decisions: Sequence["Decision"]) -> None:
    """Tell some decisions of a plan in words, one a line."""
    console = _stdout()
    console.print(_headline(plan), style="bold")
    console.print("The decisions that matter most:")
    for d in decisions:
        took = f"{_time(d.fp32_us)} in fp32, {_time(d.low_us)} in {plan.low}"
        console.print(
            escape(f"  {d.node} ({d.op_type}) runs in {d.precision}: {took}. {d.decided_by}: {d.reason}."),
            soft_wrap=True,
        )


def print_decision(
    plan: "Plan", decision: "Decision", casts: Sequence["PlannedCast"], pad: "PlannedPad | None"
) -> None:
    """Print one decision in full."""
    console = _stdout()
    console.print(_headline(plan), style="bold")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("node", f"{escape(decision.node)} ({escape(decision.op_type)}, {decision.op_class})")
    table.add_row("precision", decision.precision)
    table.add_row("decided by", decision.decided_by)
    table.add_row("reason", escape(decision.reason))
    table.add_row("in fp32", _time(decision.fp32_us))
    table.add_row(f"in {plan.low}", f"{_time(decision.low_us)}, casts apart")
    if pad is not None:
        table.add_row("padded", f"its kernel saves {_time(pad.gain_us)}, pads cost {_time(pad.pads_us)}")
    table.add_row("casts", f"{_time(decision.cast_us)} at its inputs and outputs")
    for cast in casts:
        where = "made by it" if cast.producer == decision.node else "read by it"
        shared = f", shared by {len(cast.consumers)} readers" if len(cast.consumers) > 1 else ""
        table.add_row(
            "", escape(f"{cast.tensor} ({where}{shared}): {cast.src} -> {cast.dst}, {_time(cast.cast_us)}")
        )
    console.print(table)


def print_profile(profile: "Profile", output: Path) -> None:
    """Print where the time of an FP32 step goes, by operator."""
    console, ops = _stdout(), profile.ops()
    machine = profile.machine
    console.print(
        escape(
            f"{machine.device} ({machine.provider}), ONNX Runtime {machine.ort}: "
            f"FP32 step {_time(profile.step_us)}, sum of its nodes {_time(profile.nodes_us)}"
        ),
        style="bold",
    )
    if profile.accounted is not None:
        console.print(f"Within a step, node times add up to {profile.accounted:.1%} of it.")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("operator", "nodes", "time", "share"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for row in ops.head(_OPS_SHOWN).iter_rows(named=True):
        share = row["fp32_us"] / profile.nodes_us if profile.nodes_us else 0.0
        table.add_row(escape(row["op"]), str(row["nodes"]), _time(row["fp32_us"]), f"{share:.1%}")
    console.print(table)
    if profile.failed:
        console.print(f"{profile.failed} nodes were not measured: the runtime could not run them alone.")
    console.print(escape(f"Wrote {output}"))


def print_calibration(calibration: "Calibration", output: Path) -> None:
    """Print how well each operator's model predicts shapes it has not seen."""
    console, machine = _stdout(), calibration.machine
    console.print(
        escape(
            f"{machine.device} ({machine.provider}), ONNX Runtime {machine.ort}, "
            f"{calibration.precision.value}"
        ),
        style="bold",
    )
    cast = calibration.cast
    console.print(
        f"Cast: {cast.r_us * 1e6:.1f} us per million elements + {cast.c_i_us:.2f} us "
        f"(M_A {calibration.cast_score:.1%})"
    )
    table = Table(box=box.SIMPLE_HEAD, title="M_A on held-out shapes", title_justify="left")
    for column in ("operator", "shapes", "model", "paper's fit", "one for all", "roofline", "method"):
        table.add_column(column, justify="left" if column in ("operator", "method") else "right")
    for entry in calibration.entries:
        scores = entry.scores
        name = f"{entry.op} (tensor cores)" if entry.on_tensor_cores else entry.op
        figures = (scores.chosen, scores.by_method["paper"], scores.general, scores.roofline)
        table.add_row(
            escape(name), f"{entry.fitted}+{scores.shapes}", *(f"{f:.1%}" for f in figures), entry.method
        )
    console.print(table)
    if calibration.entries:
        console.print(f"Over all: {calibration.score:.1%} (the paper reports 94.2 % on its GPUs)")
    for op, why in calibration.failures.items():
        console.print(escape(f"{op}: {why}"), style="dim")
    console.print(escape(f"Wrote {output}"))


_STATUS_STYLES = {"passed": "green", "failed": "bold red", "not checked": "yellow", "not asked": "dim"}


def print_verdicts(checked: Sequence["Verdicts"]) -> None:
    """Print what a check found, one table a graph."""
    console = _stdout()
    for verdicts in checked:
        title = f"{verdicts.mixed} against {verdicts.against}"
        if verdicts.device:
            title += f", {verdicts.device} ({verdicts.costs})"
        console.print(escape(title), style="bold")
        if verdicts.error is not None:
            console.print(escape(str(verdicts.error)), style="bold red")
            continue
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("rule", no_wrap=True)
        table.add_column("result", no_wrap=True)
        table.add_column("why", overflow="fold")
        for verdict in verdicts.verdicts:
            status = verdict.status.value
            style = _STATUS_STYLES[status]
            table.add_row(
                escape(verdict.rule), f"[{style}]{status}[/{style}]", escape(verdict.finding.reason)
            )
        console.print(table)


def print_annotations(text: str, *, beside_a_document: bool) -> None:
    """Print GitHub's workflow commands; to stderr where stdout holds a document."""
    (sys.stderr if beside_a_document else sys.stdout).write(text)


def print_devices(devices: Sequence["Device"]) -> None:
    """Print the devices that can be planned for."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "device", "known by", "fp32", "tf32", "fp16 tensor", "memory", "source"):
        table.add_column(column, justify="right" if column in ("fp32", "tf32", "memory") else "left")
    for d in devices:
        table.add_row(
            d.name,
            d.title,
            d.kind.value,
            _tflops(d.fp32_flops_per_s),
            _tflops(d.tf32_flops_per_s),
            _tflops(d.fp16_tensor_flops_per_s),
            f"{d.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s",
            escape(d.source),
        )
    _stdout().print(table)


def _tflops(flops_per_s: float | None) -> str:
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:g} T"


def _time(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if abs(us) >= 1000 else f"{us:,.1f} us"
