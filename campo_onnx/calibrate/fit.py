"""Fit the performance models, and say how good they are (Campo paper, 4.2).

Eq. 1 for casts, Eq. 2 for operators on the events that Spearman's rank correlation chooses, M_A (Eq. 3)
on shapes kept out of the fit.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from campo_onnx.calibrate.op_model import TIME, OpModel, TimeModel, matern, position
from campo_onnx.errors import ProfileError
from campo_onnx.targets.cast_model import CastModel, Knee

Floats: TypeAlias = NDArray[np.float64]

T = TypeVar("T")

PAPER_ACCURACY = 0.942
"""The paper's figure, over 143 operators."""

THRESHOLD = 0.75
"""The paper's: an event is a feature when its |rho| with the low-precision time is larger."""

HELD_OUT_EVERY = 3
"""Every third sample is kept out of the fit."""

_FOLDS = 4
_CONSTANT = 1e-9  # spread of a logarithm that is only rounding
_DIGITS = 4  # of what is kept of samples: far finer than their distances
_FEWEST = 6  # fewer samples than this determine no model


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One node, measured in both precisions."""

    fp32_us: float
    low_us: float
    events: Mapping[str, float]

    def __post_init__(self) -> None:
        """Refuse times that a share cannot be taken of; make the mapping read-only."""
        for name in ("fp32_us", "low_us"):
            time_us = getattr(self, name)
            if not 0 < time_us < math.inf:
                raise ValueError(f"{name} is {time_us}, and a sample needs a time")
        object.__setattr__(self, "events", MappingProxyType(dict(self.events)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Settings of a fit."""

    name: str
    # Whether errors count as shares of the measured time, as M_A counts them, rather than in microseconds,
    # where the largest nodes decide alone.
    relative: bool = True
    # Whether weights may not be negative: no event then makes a node faster, and predictions stay sane
    # outside the samples.
    non_negative: bool = True
    with_time: bool = True
    all_events: bool = True
    neighbours: bool = False  # whether nothing is fitted, and the nearest samples predict
    process: bool = False  # whether all samples predict, as a Gaussian process

    @property
    def keeps_samples(self) -> bool:
        """Whether the model holds all samples."""
        return self.neighbours or self.process


PAPER = Method(name="paper", relative=False, non_negative=False, with_time=False, all_events=False)
METHODS = (
    PAPER,
    Method(name="relative", non_negative=False, with_time=False, all_events=False),
    Method(name="non-negative", all_events=False),
    Method(name="all events"),
    Method(name="neighbours", neighbours=True),
    Method(name="process", process=True),
)
"""The paper's fit and what is offered beside it."""


def fit_op(samples: Sequence[Sample], selected: Sequence[str], method: Method = PAPER) -> OpModel:
    """Find the weights of Eq. 2."""
    if method.keeps_samples:
        return _process(samples) if method.process else _neighbours(samples)
    features = (
        *((TIME,) if method.with_time else ()),
        *(samples[0].events if method.all_events else selected),
    )
    fp32_us = np.asarray([s.fp32_us for s in samples])
    low_us = np.asarray([s.low_us for s in samples])
    values = [np.asarray([1.0 if name == TIME else s.events[name] for s in samples]) for name in features]
    columns = [fp32_us * column for column in values]
    *weights, sigma_us = _solve(columns, low_us, relative=method.relative, non_negative=method.non_negative)
    ratios = low_us / fp32_us
    return OpModel(
        features=features,
        weights=tuple(weights),
        sigma_us=sigma_us,
        ratios=None if method is PAPER else (float(ratios.min()), float(ratios.max())),
        ranges=() if method is PAPER else tuple((float(v.min()), float(v.max())) for v in values),
    )


def _neighbours(samples: Sequence[Sample]) -> OpModel:
    """Keep the samples themselves: features that vary widely count as much as those that vary little."""
    features = (TIME, *samples[0].events)
    all_events = [{**sample.events, TIME: sample.fp32_us} for sample in samples]
    alike = (1.0,) * len(features)
    spread = np.std([position(features, alike, events) for events in all_events], axis=0)
    weights = tuple(float(1 / one) if one > _CONSTANT else 0.0 for one in spread)
    ratios = [sample.low_us / sample.fp32_us for sample in samples]
    rows = zip(all_events, ratios, strict=True)
    return OpModel(
        features=features,
        weights=weights,
        sigma_us=0.0,
        ratios=(min(ratios), max(ratios)),
        samples=tuple(
            tuple(round(x, _DIGITS) for x in (*position(features, weights, events), math.log(ratio)))
            for events, ratio in rows
        ),
    )


def _process(samples: Sequence[Sample]) -> OpModel:
    """Fit a Gaussian process to the logarithms of ratios: length scale and noise of greatest likelihood."""
    near = _neighbours(samples)
    table = np.asarray(near.samples)
    places, logs = table[:, :-1], table[:, -1]
    center, far = float(logs.mean()), np.linalg.norm(places[:, None] - places[None], axis=2)
    best: tuple[float, float, Floats] | None = None
    for reach in _REACHES:
        alike = np.vectorize(matern)(far / reach)
        for noise in _NOISES:
            factor = np.linalg.cholesky(alike + noise * np.eye(len(logs)))
            whitened = np.linalg.solve(factor, logs - center)
            # The scale of the process that fits best is a mean, and falls out.
            scale = max(float(np.mean(whitened**2)), _LEAST_SCALE)
            likelihood = -np.log(np.diag(factor)).sum() - len(logs) / 2 * math.log(scale)
            if best is None or likelihood > best[0]:
                best = float(likelihood), reach, np.linalg.solve(factor.T, whitened)
    assert best is not None
    _, reach, coefficients = best
    rows = zip(near.samples, coefficients, strict=True)
    return replace(
        near,
        samples=tuple((*place[:-1], round(float(c), _DIGITS)) for place, c in rows),
        reach=reach,
        center=round(center, _DIGITS),
    )


_REACHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # in standard deviations of features
_NOISES = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)  # variances beside that of the process
_LEAST_SCALE = 1e-12  # ratios that are all alike


TIME_FEATURES = ("moved_bytes", "flops", "waves", "beyond_l2_bytes")
"""Features that predict FP32 times; all follow from shapes."""


def fit_time(
    events: Sequence[Mapping[str, float]], fp32_us: Sequence[float], *, keeps_samples: bool = True
) -> TimeModel:
    """Fit FP32 times, for devices that are not at hand.

    A sum of features (relative, non-negative least squares), which samples nearby correct where
    cross-validation says that they do: what kernels make of thin or odd shapes is in no sum.

    `keeps_samples`: whether the model may hold samples.
    """
    rows = list(zip(events, fp32_us, strict=True))
    corrections = [method for method in METHODS if method.keeps_samples]
    candidates = [None, *(corrections if keeps_samples and len(rows) >= _FEWEST else ())]
    scores = [_time_score(rows, method) for method in candidates] if len(candidates) > 1 else [0.0]
    return _time_model(rows, candidates[int(np.argmax(scores))])


def _time_model(rows: Sequence[tuple[Mapping[str, float], float]], correction: Method | None) -> TimeModel:
    columns = [np.asarray([events[name] for events, _ in rows]) for name in TIME_FEATURES]
    fp32_us = np.asarray([time_us for _, time_us in rows])
    *weights, constant_us = _solve(columns, fp32_us, relative=True, non_negative=True)
    model = TimeModel(features=TIME_FEATURES, weights=tuple(weights), constant_us=constant_us)
    sums_us = [model.fp32_us(events) for events, _ in rows]
    if correction is None or min(sums_us) <= 0:
        return model
    samples = [
        Sample(fp32_us=sum_us, low_us=row[1], events=row[0])
        for sum_us, row in zip(sums_us, rows, strict=True)
    ]
    return replace(model, residual=fit_op(samples, (), correction))


def _time_score(rows: Sequence[tuple[Mapping[str, float], float]], correction: Method | None) -> float:
    """Score a model of FP32 times in cross-validation: minus the mean factor it is off by, as a logarithm.

    Twice and half the time count alike: by M_A, a model that predicts too little everywhere would win.
    """
    factors = [
        abs(math.log(predicted_us / time_us)) if predicted_us > 0 else math.inf
        for rest, tests in _folds(rows)
        for model in (_time_model(rest, correction),)
        for events, time_us in tests
        for predicted_us in (model.fp32_us(events),)
    ]
    return -round(float(np.mean(factors)), 3)  # of models that are as good, the simpler one is taken


_FEWEST_CASTS = 2  # Eq. 1 has two unknowns
_KNEES = tuple(1 << bits for bits in (14, 16, 18, 20, 22))  # elements that caches of 100 KB to 25 MB hold
_FEWEST_BEYOND = 3  # Casts of more elements: one alone would be met exactly, noise included


def fit_cast(elements: Sequence[int], cast_us: Sequence[float], *, relative: bool = True) -> CastModel:
    """Find r and C_I of Eq. 1 by least squares, and the sizes from which r grows; none is negative.

    `elements` and `cast_us`: measured casts, both directions together, as in the paper.
    `relative`: whether errors count as shares of the measured time, and r may grow with the size; the paper's
    fit counts microseconds and has one r.
    """
    if len(elements) < _FEWEST_CASTS:
        raise ProfileError(
            "the cost of Casts cannot be fitted",
            why=f"{len(elements)} of them have a time above zero, and {_FEWEST_CASTS} are needed",
            remedy="Measure them again: name another file with --store.",
        )
    sizes = np.asarray(elements, np.float64)
    knees = [knee for knee in _KNEES if relative and np.count_nonzero(sizes > knee) >= _FEWEST_BEYOND]
    r_us, *more_us, c_i_us = _solve(
        [sizes, *(np.maximum(sizes - knee, 0.0) for knee in knees)],
        np.asarray(cast_us),
        relative=relative,
        non_negative=True,
    )
    steeper = zip(knees, more_us, strict=True)
    return CastModel(
        r_us=r_us, c_i_us=c_i_us, knees=tuple(Knee(elements=n, more_us=us) for n, us in steeper if us > 0)
    )


def _solve(columns: Sequence[Floats], target: Floats, *, relative: bool, non_negative: bool) -> list[float]:
    """Least squares with a constant as the last coefficient."""
    from scipy.optimize import (
        nnls,  # takes a quarter of a second, and planning needs other parts of this file
    )

    matrix = np.stack([*columns, np.ones_like(target)], axis=1)
    if relative:
        matrix, target = matrix / target[:, None], np.ones_like(target)
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0  # columns differ by orders of magnitude
    matrix = matrix / scale
    if non_negative:
        solution: Floats = nnls(matrix, target)[0]
    else:
        solution = np.linalg.lstsq(matrix, target, rcond=None)[0]
    return [float(value) for value in solution / scale]


def correlations(samples: Sequence[Sample]) -> dict[str, float]:
    """Spearman's rho of every event with the low-precision time; 0 for one that never changes."""
    from scipy.stats import spearmanr  # takes half a second, and planning needs other parts of this file

    low_us = np.asarray([sample.low_us for sample in samples])
    coefficients: dict[str, float] = {}
    for event in samples[0].events:
        values = np.asarray([sample.events[event] for sample in samples])
        is_constant = np.ptp(values) == 0 or np.ptp(low_us) == 0
        coefficients[event] = 0.0 if is_constant else float(spearmanr(values, low_us).statistic)
    return coefficients


def select(samples: Sequence[Sample], threshold: float = THRESHOLD) -> tuple[str, ...]:
    """Names of the events with |rho| above the threshold; the strongest one if none is."""
    strengths = {event: abs(rho) for event, rho in correlations(samples).items()}
    chosen = tuple(event for event, rho in strengths.items() if rho > threshold)
    return chosen or (max(strengths, key=lambda event: strengths[event]),)


def model_accuracy(predicted_us: Iterable[float], measured_us: Iterable[float]) -> float:
    """Eq. 3: one minus the mean relative error. It has no lower end.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model with the method that predicted best in cross-validation."""

    model: OpModel
    method: str
    by_method: Mapping[str, OpModel]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_method", MappingProxyType(dict(self.by_method)))


def fit_best(samples: Sequence[Sample], methods: Sequence[Method] = METHODS) -> Fitted | None:
    """Fit by every method, and choose by cross-validation inside the given samples.

    Held-out shapes take no part in the choice, so that M_A on them stays honest.
    """
    if len(samples) < _FEWEST:
        return None
    scores = {method.name: _cross_validated(samples, method) for method in methods}
    by_method = {method.name: fit_op(samples, select(samples), method) for method in methods}
    best = max(scores, key=lambda name: scores[name])
    return Fitted(model=by_method[best], method=best, by_method=by_method)


def fit_by(name: str, samples: Sequence[Sample]) -> OpModel:
    """Fit by the method of a name, as :func:`fit_best` chose it on some of the samples."""
    method = next(method for method in METHODS if method.name == name)
    return fit_op(samples, select(samples), method)


def _cross_validated(samples: Sequence[Sample], method: Method) -> float:
    scores = [accuracy(fit_op(rest, select(rest), method), tests) for rest, tests in _folds(samples)]
    return float(np.mean(scores))


def _folds(samples: Sequence[T]) -> Iterator[tuple[list[T], list[T]]]:
    """Split samples into those to fit and those to test with, in as many ways as there are folds."""
    for fold in range(_FOLDS):
        yield (
            [sample for i, sample in enumerate(samples) if i % _FOLDS != fold],
            [sample for i, sample in enumerate(samples) if i % _FOLDS == fold],
        )
