"""What FP16 does to the weight update of one step, in emulated arithmetic."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.errors import CampoError
from campo_onnx.export.step_naming import GRADS_FINITE, LOSS_SCALE
from campo_onnx.ir.importer import Imported
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run
from campo_onnx.training.numerics import emulate, relative_l2, seeded
from campo_onnx.training.step_interface import step_interface

SCALES = (2.0**15, 2.0**10, 2.0**5, 1.0)
"""Loss scales, tried as dynamic loss scaling would: lower while gradients overflow."""


def update_errors(given: Imported, mixed: Mapping[str, onnx.ModelProto]) -> dict[str, dict[str, Any]]:
    """How far the weights' updates of graphs are from FP32's, by label; equal graphs are run once."""
    found: dict[int, dict[str, Any]] = {}
    for model in mixed.values():
        if id(model) not in found:
            try:
                found[id(model)] = {**update_error(given, model)}
            except CampoError as error:
                found[id(model)] = {"failure": error.why or error.what}
    return {label: found[id(model)] for label, model in mixed.items()}


def update_error(given: Imported, mixed: onnx.ModelProto) -> dict[str, float]:
    """Compare the new weights of a mixed graph with those of the FP32 graph after one step.

    Inputs are made up, and the same for both; random nodes draw the same masks. A step whose gradients
    overflow at every scale is skipped, and its error is 1.
    """
    feeds = synthesize(given.view)
    here = machine("cpu")
    scales = SCALES if LOSS_SCALE in feeds else SCALES[-1:]
    expected = run(seeded(given.model), _at(scales[-1], feeds), here)
    emulated = seeded(emulate(mixed))
    for scale in scales:
        actual = run(emulated, _at(scale, feeds), here)
        if actual.get(GRADS_FINITE, True):
            break
    following = step_interface(given.view, constants=given.constants).next_value
    errors = [
        relative_l2(*(values[new].astype(np.float64) - feeds[old] for values in (actual, expected)))
        for old, new in following.items()
        if old.startswith("param.")
    ]
    finite = [error for error in errors if np.isfinite(error)]
    return {
        "median": float(np.median(errors)),
        "worst": max(finite, default=float("inf")),
        "not_finite": len(errors) - len(finite),
        "scale": scale,
        "parameters": len(errors),
    }


def _at(scale: float, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Feeds at a loss scale; a graph without one computes at scale 1."""
    return {**feeds, LOSS_SCALE: np.asarray(scale, np.float32)} if LOSS_SCALE in feeds else dict(feeds)
