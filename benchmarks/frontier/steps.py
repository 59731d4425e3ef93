"""Steps whose frontier is looked at: captured ones of the tests, and small variants of known networks."""

from dataclasses import replace
from itertools import islice
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
BATCHES = 4
"""Batches that errors are averaged over: on a single one a rectifier of one value may decide them."""

TARGETS = {Precision.FP16: "v100", Precision.BF16: "h200"}
"""Target of the plans, by format: public figures of GPUs that have units for it."""

NEXT_TO_NOTHING_US = 1e-4
"""Time of a launch. Steps as small as these are all launches, and no Cast pays; large ones are not."""


class Case(NamedTuple):
    """A step, as it runs on its target, what there is to decide, and batches."""

    imported: Imported
    problem: Problem
    options: Options
    batches: list[Arrays]


def case_of(name: str, low: Precision, work: Path, device: str = "", form: Precision | None = None) -> Case:
    """Prepare a step.

    Parameters
    ----------
    name
        One of :data:`benchmarks.frontier.GRAPHS`, a network of :mod:`benchmarks.measured.learners`, or the
        path of a graph.
    low
        The low format.
    work
        Where exported steps are kept.
    device
        What is planned for, unless :data:`TARGETS`.
    form
        The format in which the step is lowered, if not the low one.
    """
    aim = replace(target(device or TARGETS[low]), launch_us=NEXT_TO_NOTHING_US, host_us=NEXT_TO_NOTHING_US)
    options = Options(
        target=aim, lists=oplists("campo"), low=low, costs=CostSource.DATASHEET, min_gain=0.0, pads=False
    )
    if name.endswith(".onnx"):
        path = Path(name)
    else:
        path = DATA / f"{name}.onnx" if name in GRAPHS else _exported(name, work)
    imported = form_for(import_model(path), replace(options, low=form or low))
    batches = _stored(path.with_suffix(".npz")) or [
        dict(batch.feeds) for batch in islice(draw_batches(imported.view), BATCHES)
    ]
    return Case(imported, problem_of(imported, options), options, batches)


def _stored(path: Path) -> list[Arrays]:
    """Read the weights and the images of an exported network, as many as all batches have."""
    if not path.is_file():
        return []
    arrays = dict(np.load(path))
    rows = [slice(start, start + BATCH) for start in range(0, BATCH * BATCHES, BATCH)]
    return [{name: v[r] if name.startswith(_OF_BATCH) else v for name, v in arrays.items()} for r in rows]


_OF_BATCH = ("input", "target")


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
    samples, labels = (values[: BATCH * BATCHES].contiguous() for values in digits(LEARNERS[name].enlarged))
    module = built(name, 0)
    first = (samples[:BATCH],), (labels[:BATCH],)
    model = export_training_step(module, LEARNERS[name].loss, *first, loss_scale=False)
    names = [v.name for v in model.graph.input if v.name.startswith(_OF_BATCH)]
    images = dict(zip(names, (samples.numpy(), labels.numpy()), strict=True))
    np.savez(path.with_suffix(".npz"), **first_state(module, model) | images)
    export_model(model, path)
    return path
