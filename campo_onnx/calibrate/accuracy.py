"""How good the models are: M_A (Eq. 3) on shapes kept out of the fit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from campo_onnx.calibrate.fit import METHODS, Method, OpModel, Sample, fit_op
from campo_onnx.calibrate.select import select

PAPER_ACCURACY = 0.942
"""What the paper reports over 143 operators."""

HELD_OUT_EVERY = 3
"""Every third sample is kept out of the fit."""

_FOLDS = 4
_FEWEST = 6  # fewer samples than this determine no model

T = TypeVar("T")


def model_accuracy(predicted_us: Iterable[float], measured_us: Iterable[float]) -> float:
    """Eq. 3: one minus the mean relative error. It has no lower end.

    Examples
    --------
    >>> model_accuracy([9.0, 11.0], [10.0, 10.0])
    0.9
    """
    predicted, measured = np.asarray(list(predicted_us)), np.asarray(list(measured_us))
    return float(1 - np.mean(np.abs((predicted - measured) / measured)))


def split(samples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Samples to fit and samples to test with; samples come in random order already."""
    fitted = [sample for i, sample in enumerate(samples) if i % HELD_OUT_EVERY]
    return fitted, [sample for i, sample in enumerate(samples) if not i % HELD_OUT_EVERY]


def accuracy(model: OpModel, samples: Sequence[Sample]) -> float:
    """M_A of a model over samples."""
    predicted = [model.low_us(s.fp32_us, s.events) for s in samples]
    return model_accuracy(predicted, [s.low_us for s in samples])


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A model with the method that predicted best in cross-validation.

    Parameters
    ----------
    model
        The model, fitted to all samples it was given.
    method
        The method's name.
    by_method
        The same samples fitted by every method.
    """

    model: OpModel
    method: str
    by_method: dict[str, OpModel]


def fit_best(samples: Sequence[Sample], methods: Sequence[Method] = METHODS) -> Fitted | None:
    """Fit by every method, and choose by cross-validation inside the given samples.

    Held-out shapes take no part in the choice, so that M_A on them stays honest.

    Returns
    -------
    Fitted or None
        None for too few samples.
    """
    if len(samples) < _FEWEST:
        return None
    scores = {method.name: _cross_validated(samples, method) for method in methods}
    by_method = {method.name: fit_op(samples, select(samples), method) for method in methods}
    best = max(scores, key=lambda name: scores[name])
    return Fitted(model=by_method[best], method=best, by_method=by_method)


def _cross_validated(samples: Sequence[Sample], method: Method) -> float:
    scores = []
    for fold in range(_FOLDS):
        rest = [s for i, s in enumerate(samples) if i % _FOLDS != fold]
        kept = [s for i, s in enumerate(samples) if i % _FOLDS == fold]
        scores.append(accuracy(fit_op(rest, select(rest), method), kept))
    return float(np.mean(scores))
