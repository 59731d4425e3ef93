"""Cost of an operator: Eq. 2 of the Campo paper, and FP32 time from shapes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

TIME = "time"
"""The feature that is 1: it lets OP_FP32 itself into the sum of Eq. 2. Among neighbours it is OP_FP32."""

NEAREST = 6
"""Samples that a prediction from neighbours rests on."""

_LARGEST_LOGARITHM = 700.0
_AT_LEAST = 1e-3  # of a distance, so that a sample that is met exactly does not weigh infinitely


@dataclass(frozen=True, slots=True, kw_only=True)
class OpModel:
    """Eq. 2: ``OP_LP = OP_FP32 * sum(w_i * PC_i) + sigma``."""

    features: tuple[str, ...]
    weights: tuple[float, ...]
    sigma_us: float
    # Least and largest OP_LP / OP_FP32 among the samples: a prediction does not leave them, because a linear
    # model knows nothing beyond. None for the paper's fit, which has no such bounds.
    ratios: tuple[float, float] | None = None
    # Of a sum: least and largest value of each feature among the samples. A node beyond them is predicted as
    # at the nearest of them. Empty for the paper's fit.
    ranges: tuple[tuple[float, float], ...] = ()
    # Where there are any, no sum predicts, but the ratios of the nearest samples, by the inverse of their
    # distances: each sample is its features' logarithms (of 1 plus the value) times `weights`, and the
    # logarithm of OP_LP / OP_FP32.
    samples: tuple[tuple[float, ...], ...] = ()
    # Where it is above 0, all samples predict, as the mean of a Gaussian process of that length scale
    # (Matérn, 3/2): each sample ends with its coefficient, not with a ratio.
    reach: float = 0.0
    center: float = 0.0  # logarithm of the ratio far from all samples

    def __post_init__(self) -> None:
        """Refuse models that cannot predict."""
        _check_linear(self.features, self.weights, self.sigma_us)
        if self.ratios is not None and not 0 < self.ratios[0] <= self.ratios[1] < math.inf:
            raise ValueError(f"ratios are {self.ratios}, and must be positive and in order")
        if self.ranges and len(self.ranges) != len(self.features):
            raise ValueError(f"{len(self.features)} features have {len(self.ranges)} ranges")
        if any(len(sample) != len(self.features) + 1 for sample in self.samples):
            raise ValueError("a sample needs a number for each feature, and one for its ratio")
        if not (0 <= self.reach < math.inf and math.isfinite(self.center)):
            raise ValueError(f"reach is {self.reach} and center {self.center}: a length and a number")

    def reads(self, events: Mapping[str, float]) -> bool:
        """Whether all its features are among the events."""
        return all(name == TIME or name in events for name in self.features)

    def low_us(self, fp32_us: float, events: Mapping[str, float]) -> float:
        """Predict the low-precision time of a node from its FP32 time and events."""
        if self.samples:
            predicted = fp32_us * self._nearby({**events, TIME: fp32_us})
        else:
            events = {**events, TIME: 1.0}
            values = [events[name] for name in self.features]
            if self.ranges:
                pairs = zip(values, self.ranges, strict=True)
                values = [min(max(value, low), high) for value, (low, high) in pairs]
            factor = sum(w * value for value, w in zip(values, self.weights, strict=True))
            predicted = fp32_us * factor + self.sigma_us
        if self.ratios is None:
            return predicted
        return min(max(predicted, fp32_us * self.ratios[0]), fp32_us * self.ratios[1])

    def _nearby(self, events: Mapping[str, float]) -> float:
        """Mean ratio of the samples nearby, of logarithms."""
        here = position(self.features, self.weights, events)
        if self.reach:
            weighted = (matern(math.dist(here, s[:-1]) / self.reach) * s[-1] for s in self.samples)
            return _exp(self.center + sum(weighted))
        nearest = sorted((math.dist(here, sample[:-1]), sample[-1]) for sample in self.samples)[:NEAREST]
        shares = [1 / (distance + _AT_LEAST) for distance, _ in nearest]
        logarithms = zip(shares, (ratio for _, ratio in nearest), strict=True)
        return _exp(sum(share * ratio for share, ratio in logarithms) / sum(shares))


def _exp(logarithm: float) -> float:
    """Return the ratio of a logarithm, which floats hold; what is too large is refused with the node."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def position(
    features: tuple[str, ...], weights: tuple[float, ...], events: Mapping[str, float]
) -> tuple[float, ...]:
    """Say where a node lies among samples: its features' logarithms, weighted."""
    return tuple(w * math.log1p(events[name]) for name, w in zip(features, weights, strict=True))


def matern(distance: float) -> float:
    """Correlation of two samples (Matérn, 3/2), by their distance in length scales.

    >>> matern(0.0), round(matern(1.0), 3)
    (1.0, 0.483)
    """
    scaled = math.sqrt(3) * distance
    return (1 + scaled) * math.exp(-scaled)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """FP32 time from what follows from shapes: ``sum(w_i * event_i) + constant``, times a ratio."""

    # features, weights: events and their weights in microseconds, none negative.
    features: tuple[str, ...]
    weights: tuple[float, ...]
    constant_us: float
    # Measured times over that sum, as samples nearby have it; None where the sum alone predicts better.
    residual: OpModel | None = None

    def __post_init__(self) -> None:
        """Refuse models that cannot predict."""
        _check_linear(self.features, self.weights, self.constant_us)
        if min((*self.weights, self.constant_us)) < 0:
            raise ValueError("a weight or the constant is negative")

    def fp32_us(self, events: Mapping[str, float]) -> float:
        """Predict the FP32 time of a node."""
        pairs = zip(self.features, self.weights, strict=True)
        sum_us = sum(w * events[name] for name, w in pairs) + self.constant_us
        return sum_us if self.residual is None else max(0.0, self.residual.low_us(sum_us, events))


def _check_linear(features: tuple[str, ...], weights: tuple[float, ...], constant_us: float) -> None:
    if len(features) != len(weights):
        raise ValueError(f"{len(features)} features have {len(weights)} weights")
    if not all(map(math.isfinite, (*weights, constant_us))):
        raise ValueError("a weight or the constant is not finite")
