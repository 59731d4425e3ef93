"""Gradients beside those of ONNX Runtime in FP32, and how far off rounding alone puts them.

A right loss does not show right gradients. How far BF16 puts a gradient depends on the network: behind batch
normalization and ReLU half of its norm, in a stack of products a hundredth. So each plan is emulated, which
says what its roundings do, and is refused where the runtime's gradients are much further off than that.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.steps import StepError
from campo_onnx.emulation.numerics import emulate
from campo_onnx.files import write_text
from campo_onnx.runtime.registry import runtime_called

Arrays = Mapping[str, Any]

FP32, MOST = "fp32", "all-low"
FILE = "gradients.safetensors"
"""Gradients that ONNX Runtime computes in FP32."""

_ERRORS = "errors.json"
_TINY = 1e-3
_SHAKEN, _DRAWS = 2.0**-18, 4
"""By how much of themselves inputs are moved in FP32, at most, and how often."""
_FURTHER, _AT_LEAST = 3.0, 0.02  # a kernel sums in another order than the emulation


def write_expected(model: onnx.ModelProto, feeds: Arrays, plans: Sequence[str], folder: Path) -> None:
    """Write the gradients of a step in FP32, and how far roundings alone put those of each plan.

    Parameters
    ----------
    model
        The step in FP32.
    feeds
        Values of its inputs.
    plans
        Names of graphs in `folder`, to be emulated. In FP32 the error is that of inputs moved by a few
        millionths: sums in another order move tensors by one, and what a rectifier reads may lie nearer
        to zero. Of 16,384 elements behind ResNet-50's last block, FP64 has one at 1.2e-6: OpenVINO and torch
        cut it off, ONNX Runtime does not, and a gradient differs by 2 % of its norm.
    folder
        Of the network.
    """
    from safetensors.numpy import save_file

    gradients = {k: np.array(v) for k, v in _outputs(model, feeds).items() if k.startswith("grad.")}
    save_file(gradients, folder / FILE)
    draws = (_outputs(model, _moved(feeds, seed)) for seed in range(_DRAWS))
    errors = {FP32: max(farthest_gradient(outputs, gradients) for outputs in draws)}
    for plan in plans:
        emulated = emulate(onnx.load(folder / f"{plan}.onnx"))
        errors[plan] = farthest_gradient(_outputs(emulated, feeds), gradients)
    write_text(json.dumps(errors) + "\n", folder / _ERRORS)


def _outputs(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    read = {value.name for value in model.graph.input}
    program = runtime_called("onnxruntime").load(model, "cpu", threads=1)
    outputs: Arrays = program.run({name: value for name, value in feeds.items() if name in read})
    return outputs


def _moved(feeds: Arrays, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(value * (1 + rng.uniform(-_SHAKEN, _SHAKEN, value.shape)), value.dtype)
        if np.issubdtype(value.dtype, np.floating)
        else value
        for name, value in feeds.items()
    }


def errors_in(folder: Path, plan: str, outputs: Arrays) -> dict[str, float]:
    """Compare what a runtime computes for a plan with what was written about its network.

    Returns
    -------
    dict
        ``gradient_error`` of the outputs, and ``emulated_error``, which roundings alone explain.
    """
    from safetensors.numpy import load_file

    explained: Mapping[str, float] = json.loads((folder / _ERRORS).read_text(encoding="utf-8"))
    far = farthest_gradient(outputs, load_file(folder / FILE))
    if plan not in explained or plan == FP32:
        return {"gradient_error": far, "emulated_error": explained[FP32]}
    # One draw of roundings says little where they decide which way a rectifier goes.
    return {"gradient_error": far, "emulated_error": max(explained[plan], explained[MOST])}


def farthest_gradient(outputs: Arrays, expected: Arrays) -> float:
    """Give the largest distance of a gradient from the expected one, over the norm of that one.

    Gradients that are tiny beside the largest are left out: they are zeros but for rounding.
    """
    norms = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    least = _TINY * max(norms.values(), default=0.0)
    return max(
        (
            float(np.linalg.norm(np.asarray(outputs[name], np.float64) - expected[name])) / norm
            for name, norm in norms.items()
            if norm > least
        ),
        default=0.0,
    )


def refuse_unexplained(errors: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse plans whose gradients are further off than roundings explain.

    Parameters
    ----------
    errors
        By side, as :func:`errors_in` gives them.

    Raises
    ------
    StepError
        If there is one.
    """
    for side, error in errors.items():
        limit = _FURTHER * error["emulated_error"] + _AT_LEAST
        if not error["gradient_error"] <= limit:  # NaN too
            raise StepError(
                f"a gradient of {side} is off by {error['gradient_error']:.3g} of its norm, "
                f"where rounding explains {error['emulated_error']:.3g}"
            )
