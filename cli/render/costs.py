"""Profiles and calibrations."""

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from .bench import print_written
from .console import escape, is_verbose, print_warning, stdout
from .table import Cell, Column, Table, TableFormat, number
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration, OpEntry
    from campo_onnx.measure.profile import Profile

_OPS_SHOWN = 12


def print_profile(profile: "Profile", output: Path, form: TableFormat = TableFormat.TEXT) -> None:
    """Print where the time of an FP32 step goes, by operator; on a screen, the longest."""
    console, ops = stdout(), profile.ops()
    machine = profile.machine
    is_whole = form is not TableFormat.TEXT or is_verbose()
    whole_us = profile.nodes_us
    table = Table(
        (
            Column("operator", "operator", itemgetter("op"), may_break=True),
            number("nodes", "nodes", itemgetter("nodes")),
            number("time", "fp32_us", itemgetter("fp32_us"), duration),
            number(
                "share", "share", lambda row: row["fp32_us"] / whole_us if whole_us else 0.0, "{:.1%}".format
            ),
        )
    ).fill(ops.head(len(ops) if is_whole else _OPS_SHOWN).iter_rows(named=True))
    if form is not TableFormat.TEXT:
        table.show(form)
        print_written(output, form=form)
        return
    console.print(
        escape(
            f"{machine.device} ({machine.provider}), {machine.software}: "
            f"FP32 step {duration(profile.step_us)}, sum of its nodes {duration(profile.nodes_us)}"
        ),
        style="bold",
    )
    if profile.accounted is not None:
        what = "of the step" if not machine.is_gpu else "of the time in which the GPU was busy"
        console.print(f"Within a step, node times add up to {profile.accounted:.1%} {what}.")
    table.show()
    for note in profile.notes:
        console.print(escape(_sentence(note)), soft_wrap=True)
    if profile.failed:
        console.print(
            f"{profile.failed} nodes were not measured: {machine.software} could not run them in isolation."
        )
    console.print(escape(f"Wrote {output}"))


def print_calibration(calibration: "Calibration", output: Path, form: TableFormat = TableFormat.TEXT) -> None:
    """Print how well each operator's model predicts held-out shapes."""
    if form is not TableFormat.TEXT:
        _calibration_table(calibration).show(form)
        print_written(output, form=form)
        return
    console, machine = stdout(), calibration.machine
    console.print(
        escape(f"{machine.device} ({machine.provider}), {machine.software}, {calibration.precision.value}"),
        style="bold",
    )
    console.print(f"Cast: {calibration.cast} (M_A {calibration.cast_score:.1%})")
    _calibration_table(calibration).show()
    if calibration.entries:
        console.print(f"Overall: {calibration.score:.1%} (the paper reports 94.2 % on its GPUs)")
    if why := calibration.doubt:
        print_warning(f"{why}. --costs auto passes it over.")
    if calibration.counters_refusal:
        console.print(escape(_sentence(calibration.counters_refusal)), soft_wrap=True)
    for op, why in calibration.failures.items():
        console.print(escape(f"{op}: {why}"), style="dim")
    console.print(escape(f"Wrote {output}"))


def _calibration_table(calibration: "Calibration") -> Table:
    """Lay out the accuracy (M_A) of each operator's model, and of others, on shapes kept out of the fit."""
    from campo_onnx.calibrate.calibration import LEAST_ACCURACY

    units = "tensor cores" if calibration.machine.is_gpu else "BF16 units"
    counted = any(entry.with_counters is not None for entry in calibration.entries)
    share = "{:.1%}".format

    def chosen(entry: "OpEntry") -> Cell:
        score = entry.scores.chosen
        return Cell(share(score), score, "yellow" if score < LEAST_ACCURACY else "")

    columns = [
        Column(
            "operator",
            "operator",
            lambda entry: f"{entry.op} ({units})" if entry.on_tensor_cores else entry.op,
            may_break=True,
        ),
        number(
            "shapes",
            "shapes_fitted",
            lambda entry: Cell(f"{entry.fitted}+{entry.scores.shapes}", entry.fitted),
            rank=2,
        ),
        number("model", "accuracy", chosen),
        number("paper's fit", "accuracy_of_paper_fit", lambda e: e.scores.by_method["paper"], share, rank=4),
        number("one for all", "accuracy_of_one_model", lambda e: e.scores.general, share, rank=3),
        number("roofline", "accuracy_of_roofline", lambda e: e.scores.roofline, share, rank=1),
    ]
    if counted:
        columns.append(
            number("with counters", "accuracy_with_counters", lambda e: e.scores.with_counters, share, rank=5)
        )
    columns += [
        Column("method", "method", lambda entry: entry.method, rank=2),
        Column("", "shapes_held_out", lambda entry: entry.scores.shapes, csv_only=True),
    ]
    return Table(columns, title="M_A on held-out shapes").fill(calibration.entries)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
