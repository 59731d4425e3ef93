"""Gradients of steps beside those of torch in FP32."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.integrations.trial.result import GradientError

_ROUNDING = 1e-3
"""Share of the largest gradient below which another counts as that large."""


def gradient_error(
    name: str, loss: float, gradients: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]
) -> GradientError:
    """Compare every gradient of a step.

    >>> exact = {"grad.w": np.array([3.0, 4.0]), "grad.b": np.array([0.0])}
    >>> error = gradient_error("ours", 1.0, exact | {"grad.w": np.array([3.0, 4.5])}, exact)
    >>> error.whole, error.parameter
    (0.1, 'w')
    """
    off = {key: _norm(np.asarray(gradients[key], np.float64) - value) for key, value in exact.items()}
    sizes = {key: _norm(value) for key, value in exact.items()}
    least = _ROUNDING * max(sizes.values(), default=0.0)
    shares = {key: off[key] / max(sizes[key], least) for key in exact if off[key] > 0}
    worst = max(shares, key=lambda key: shares[key], default="")
    total = float(np.hypot.reduce(list(sizes.values()) or [0.0]))
    return GradientError(
        name=name,
        loss=loss,
        whole=float(np.hypot.reduce(list(off.values()) or [0.0])) / total if total else 0.0,
        worst=shares.get(worst, 0.0),
        parameter=worst.removeprefix("grad."),
    )


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.ravel()))
