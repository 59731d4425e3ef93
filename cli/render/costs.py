"""Profiles and calibrations."""

from pathlib import Path
from typing import TYPE_CHECKING

from .bench import print_written
from .console import escape, is_verbose, print_warning, stdout
from .table import Cell, Column, Table, TableFormat
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration
    from campo_onnx.measure.profile import Profile

_OPS_SHOWN = 12


def print_profile(profile: "Profile", output: Path, form: TableFormat = TableFormat.TEXT) -> None:
    """Print where the time of an FP32 step goes, by operator; on a screen, the longest."""
    console, ops = stdout(), profile.ops()
    machine = profile.machine
    is_whole = form is not TableFormat.TEXT or is_verbose()
    table = Table(
        (
            Column(title="operator", key="operator", may_break=True),
            Column(title="nodes", key="nodes", is_number=True),
            Column(title="time", key="fp32_us", is_number=True),
            Column(title="share", key="share", is_number=True),
        )
    )
    for row in ops.head(len(ops) if is_whole else _OPS_SHOWN).iter_rows(named=True):
        time_us = row["fp32_us"]
        share = time_us / profile.nodes_us if profile.nodes_us else 0.0
        cells = Cell(str(row["nodes"]), row["nodes"]), Cell(duration(time_us), time_us)
        table.add(row["op"], *cells, Cell(f"{share:.1%}", share))
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
    from campo_onnx.calibrate.quality import doubt

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
    if why := doubt(calibration):
        print_warning(f"{why}. --costs auto passes it over.")
    if calibration.counters_refusal:
        console.print(escape(_sentence(calibration.counters_refusal)), soft_wrap=True)
    for op, why in calibration.failures.items():
        console.print(escape(f"{op}: {why}"), style="dim")
    console.print(escape(f"Wrote {output}"))


def _calibration_table(calibration: "Calibration") -> Table:
    """Lay out the accuracy (M_A) of each operator's model, and of others, on shapes kept out of the fit."""
    from campo_onnx.calibrate.quality import LEAST_ACCURACY

    counted = any(entry.with_counters is not None for entry in calibration.entries)
    table = Table(
        (
            Column(title="operator", key="operator", may_break=True),
            Column(title="shapes", key="shapes_fitted", is_number=True, rank=2),
            Column(title="model", key="accuracy", is_number=True),
            Column(title="paper's fit", key="accuracy_of_paper_fit", is_number=True, rank=4),
            Column(title="one for all", key="accuracy_of_one_model", is_number=True, rank=3),
            Column(title="roofline", key="accuracy_of_roofline", is_number=True, rank=1),
            *(
                [Column(title="with counters", key="accuracy_with_counters", is_number=True, rank=5)]
                if counted
                else []
            ),
            Column(title="method", key="method", rank=2),
            Column(title="", key="shapes_held_out", csv_only=True),
        ),
        title="M_A on held-out shapes",
    )
    units = "tensor cores" if calibration.machine.is_gpu else "BF16 units"
    for entry in calibration.entries:
        scores = entry.scores
        name = f"{entry.op} ({units})" if entry.on_tensor_cores else entry.op
        figures = (scores.chosen, scores.by_method["paper"], scores.general, scores.roofline)
        cells = [
            Cell(f"{figure:.1%}", figure, "yellow" if figure < LEAST_ACCURACY and not number else "")
            for number, figure in enumerate(figures)
        ]
        if counted:
            best = scores.with_counters
            cells.append(Cell("-" if best is None else f"{best:.1%}", best))
        shapes = Cell(f"{entry.fitted}+{scores.shapes}", entry.fitted)
        table.add(name, shapes, *cells, entry.method, Cell("", scores.shapes))
    return table


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
