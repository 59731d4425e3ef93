"""Profiles and calibrations."""

from pathlib import Path
from typing import TYPE_CHECKING

from .console import escape, is_verbose, print_warning, stdout
from .table import Cell, Column, Table
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration
    from campo_onnx.measure.profile import Profile

_OPS_SHOWN = 12


def print_profile(profile: "Profile", output: Path) -> None:
    """Print where the time of an FP32 step goes, by operator."""
    console, ops = stdout(), profile.ops()
    machine = profile.machine
    console.print(
        escape(
            f"{machine.device} ({machine.provider}), ONNX Runtime {machine.ort}: "
            f"FP32 step {duration(profile.step_us)}, sum of its nodes {duration(profile.nodes_us)}"
        ),
        style="bold",
    )
    if profile.accounted is not None:
        what = "of the step" if machine.provider == "cpu" else "of the time in which the GPU was busy"
        console.print(f"Within a step, node times add up to {profile.accounted:.1%} {what}.")
    table = Table(
        (
            Column(title="operator", may_break=True),
            Column(title="nodes", is_number=True),
            Column(title="time", is_number=True),
            Column(title="share", is_number=True),
        )
    )
    for row in ops.head(len(ops) if is_verbose() else _OPS_SHOWN).iter_rows(named=True):
        share = row["fp32_us"] / profile.nodes_us if profile.nodes_us else 0.0
        table.add(row["op"], str(row["nodes"]), duration(row["fp32_us"]), f"{share:.1%}")
    table.show()
    for note in profile.notes:
        console.print(escape(_sentence(note)), soft_wrap=True)
    if profile.failed:
        console.print(
            f"{profile.failed} nodes were not measured: ONNX Runtime could not run them in isolation."
        )
    console.print(escape(f"Wrote {output}"))


def print_calibration(calibration: "Calibration", output: Path) -> None:
    """Print how well each operator's model predicts held-out shapes."""
    from campo_onnx.calibrate.quality import LEAST_ACCURACY, doubt

    console, machine = stdout(), calibration.machine
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
    counted = any(entry.with_counters is not None for entry in calibration.entries)
    table = Table(
        (
            Column(title="operator", may_break=True),
            Column(title="shapes", is_number=True, rank=2),
            Column(title="model", is_number=True),
            Column(title="paper's fit", is_number=True, rank=4),
            Column(title="one for all", is_number=True, rank=3),
            Column(title="roofline", is_number=True, rank=1),
            *([Column(title="with counters", is_number=True, rank=5)] if counted else []),
            Column(title="method", rank=2),
        ),
        title="M_A on held-out shapes",
    )
    for entry in calibration.entries:
        scores = entry.scores
        name = f"{entry.op} (tensor cores)" if entry.on_tensor_cores else entry.op
        figures = (scores.chosen, scores.by_method["paper"], scores.general, scores.roofline)
        cells = [
            Cell(f"{figure:.1%}", style="yellow" if figure < LEAST_ACCURACY and not number else "")
            for number, figure in enumerate(figures)
        ]
        if counted:
            cells.append(Cell("-" if scores.with_counters is None else f"{scores.with_counters:.1%}"))
        table.add(name, f"{entry.fitted}+{scores.shapes}", *cells, entry.method)
    table.show()
    if calibration.entries:
        console.print(f"Overall: {calibration.score:.1%} (the paper reports 94.2 % on its GPUs)")
    if why := doubt(calibration):
        print_warning(f"{why}. --costs auto passes it over.")
    if calibration.counters_refusal:
        console.print(escape(_sentence(calibration.counters_refusal)), soft_wrap=True)
    for op, why in calibration.failures.items():
        console.print(escape(f"{op}: {why}"), style="dim")
    console.print(escape(f"Wrote {output}"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
