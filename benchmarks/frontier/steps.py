"""Steps whose frontier is looked at: captured ones of the tests, and small variants of known networks."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.frontier import GRAPHS
from campo_onnx import Options, Precision, export_model, oplists
from campo_onnx.costs.evidence import CostSource
from campo_onnx.emulation.batches import draw_batches
from campo_onnx.emulation.drift import Arrays
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.pipeline import form_for, problem_of
from campo_onnx.targets.target import target

DATA = Path(__file__).parents[2] / "tests" / "data"
BATCH = 16  # of small variants
TARGETS = {Precision.FP16: "v100", Precision.BF16: "h200"}
"""What is planned for, by format: public figures of GPUs that have units for it."""

NEXT_TO_NOTHING_US = 1e-4
"""Time of a launch. Steps as small as these are all launches, and no Cast pays; large ones are not."""


class Case(NamedTuple):
    """A step, as it runs on its target, what there is to decide, and a batch."""

    imported: Imported
    problem: Problem
    options: Options
    feeds: Arrays


def case_of(name: str, low: Precision, work: Path, device: str = "") -> Case:
    """Prepare a step.

    Parameters
    ----------
    name
        One of :data:`benchmarks.frontier.GRAPHS`, or a network of :mod:`benchmarks.measured.learners`.
    low
        The low format.
    work
        Where exported steps are kept.
    device
        What is planned for, unless :data:`TARGETS`.
    """
    aim = replace(target(device or TARGETS[low]), launch_us=NEXT_TO_NOTHING_US, host_us=NEXT_TO_NOTHING_US)
    options = Options(
        target=aim, lists=oplists("campo"), low=low, costs=CostSource.DATASHEET, min_gain=0.0, pads=False
    )
    path = DATA / f"{name}.onnx" if name in GRAPHS else _exported(name, work)
    imported = form_for(import_model(path), options)
    stored = path.with_suffix(".npz")
    feeds = dict(np.load(stored)) if stored.is_file() else dict(next(draw_batches(imported.view)).feeds)
    return Case(imported, problem_of(imported, options), options, feeds)


def _exported(name: str, work: Path) -> Path:
    """Export a small variant with real images, at its first weights."""
    path = work / f"{name}.onnx"
    if path.is_file():
        return path
    import torch

    from benchmarks.measured.learners import LEARNERS, built, digits
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.export.torch.state_dict import first_state

    torch.set_num_threads(1)
    samples, labels = digits(LEARNERS[name].enlarged)
    module, inputs, targets = built(name, 0), (samples[:BATCH].contiguous(),), (labels[:BATCH],)
    model = export_training_step(module, LEARNERS[name].loss, inputs, targets, loss_scale=False)
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    values = (value.numpy() for value in (*inputs, *targets))
    np.savez(path.with_suffix(".npz"), **first_state(module, model) | dict(zip(batch, values, strict=True)))
    export_model(model, path)
    return path
