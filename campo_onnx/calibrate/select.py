"""Choose the events that predict an op: Spearman's rank correlation (Campo paper, 4.2.2)."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from campo_onnx.calibrate.fit import Sample

THRESHOLD = 0.75
"""The paper's: an event is a feature when its |rho| with the low-precision time is larger."""


def correlations(samples: Sequence[Sample]) -> dict[str, float]:
    """Spearman's rho of every event with the low-precision time; 0 for one that never changes."""
    low_us = np.asarray([sample.low_us for sample in samples])
    found: dict[str, float] = {}
    for event in samples[0].events:
        values = np.asarray([sample.events[event] for sample in samples])
        is_constant = np.ptp(values) == 0 or np.ptp(low_us) == 0
        found[event] = 0.0 if is_constant else float(spearmanr(values, low_us).statistic)
    return found


def select(samples: Sequence[Sample], threshold: float = THRESHOLD) -> tuple[str, ...]:
    """Names of the events with |rho| above the threshold; the strongest one if none is.

    Parameters
    ----------
    samples
        Measured nodes of one op.
    threshold
        The paper's 0.75, unless asked otherwise.
    """
    found = {event: abs(rho) for event, rho in correlations(samples).items()}
    chosen = tuple(event for event, rho in found.items() if rho > threshold)
    return chosen or (max(found, key=lambda event: found[event]),)
