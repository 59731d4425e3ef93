"""A trial as HTML: a page of its own, and what a notebook shows."""

from importlib.util import find_spec
from typing import Any

from campo_onnx.integrations.trial.result import GradientError, Trial
from campo_onnx.report.page import NEEDED, fill, render
from campo_onnx.report.pictures import bench_picture
from campo_onnx.wording import visible

_TABLES = "trial_tables.html"


def trial_page(trial: Trial, *, command: str = "") -> str:
    """Write a trial as one HTML page."""
    title = f"{visible(trial.name)}: torch's step and ours"
    return render("trial.html", title, _values(trial), command=command)


def fragment(trial: Trial) -> str | None:
    """Write a trial for a notebook; None where packages that reports need are missing."""
    if any(find_spec(package) is None for package in NEEDED):
        return None
    return fill(_TABLES, _values(trial))


def _values(trial: Trial) -> dict[str, Any]:
    errors: dict[str, GradientError] = {error.name: error for error in trial.gradients}
    return {"trial": trial, "errors": errors, "picture": bench_picture(trial.measured)}
