"""Profiles and calibrations."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from .console import escape, stdout
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
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("operator", "nodes", "time", "share"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for row in ops.head(_OPS_SHOWN).iter_rows(named=True):
        share = row["fp32_us"] / profile.nodes_us if profile.nodes_us else 0.0
        table.add_row(escape(row["op"]), str(row["nodes"]), duration(row["fp32_us"]), f"{share:.1%}")
    console.print(table)
    for note in profile.notes:
        console.print(escape(_sentence(note)), soft_wrap=True)
    if profile.failed:
        console.print(
            f"{profile.failed} nodes were not measured: ONNX Runtime could not run them in isolation."
        )
    console.print(escape(f"Wrote {output}"))


def print_calibration(calibration: "Calibration", output: Path) -> None:
    """Print how well each operator's model predicts held-out shapes."""
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
    table = Table(box=box.SIMPLE_HEAD, title="M_A on held-out shapes", title_justify="left")
    counted = any(entry.with_counters is not None for entry in calibration.entries)
    columns = ["operator", "shapes", "model", "paper's fit", "one for all", "roofline"]
    for column in (*columns, *(["with counters"] if counted else []), "method"):
        table.add_column(column, justify="left" if column in ("operator", "method") else "right")
    for entry in calibration.entries:
        scores = entry.scores
        name = f"{entry.op} (tensor cores)" if entry.on_tensor_cores else entry.op
        figures = (scores.chosen, scores.by_method["paper"], scores.general, scores.roofline)
        cells = [f"{figure:.1%}" for figure in figures]
        if counted:
            cells.append("-" if scores.with_counters is None else f"{scores.with_counters:.1%}")
        table.add_row(escape(name), f"{entry.fitted}+{scores.shapes}", *cells, entry.method)
    console.print(table)
    if calibration.entries:
        console.print(f"Overall: {calibration.score:.1%} (the paper reports 94.2 % on its GPUs)")
    if calibration.counters_refusal:
        console.print(escape(_sentence(calibration.counters_refusal)), soft_wrap=True)
    for op, why in calibration.failures.items():
        console.print(escape(f"{op}: {why}"), style="dim")
    console.print(escape(f"Wrote {output}"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
