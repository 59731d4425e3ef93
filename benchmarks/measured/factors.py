"""Factors of nodes in steps, fitted to measured steps of whole plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.optimize import lsq_linear

from campo_onnx.calibrate.in_step import InStep, Part

STRENGTH = 0.3
"""Weight of the factor 1 for every part, in squared relative errors of a step: what a few steps do not show
stays as it was timed."""

LEAST = 0.1
"""No part takes less of its time alone: a node in a step still reads and writes, and what small steps show
beyond that is what nodes alone take for inputs and outputs of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step as it was predicted, part by part, and as it was measured.

    Parameters
    ----------
    graph
        Name of the graph: other plans of the same graph have the same.
    """

    graph: str
    parts_us: Mapping[Part, float]
    measured_us: float

    def __post_init__(self) -> None:
        """Refuse a step that took no time."""
        if not self.measured_us > 0:
            raise ValueError(f"measured_us is {self.measured_us}, and must be above 0")


ALONE = InStep(factors={})
"""Every node takes in a step what it takes alone, and views of channels-last tensors take a Transpose."""


def fit_in_step(steps: Sequence[MeasuredStep]) -> InStep:
    """Fit the factors, and say what they are worth on graphs that they were not fitted to.

    Relative errors of steps count, in squares; factors are not below :data:`LEAST`, and drawn to 1
    (:data:`STRENGTH`), so that a few steps suffice.

    Parameters
    ----------
    steps
        Measured steps of at least one graph. With one alone nothing can be kept out, and both errors are
        of the steps of the fit.
    """
    graphs = list(dict.fromkeys(step.graph for step in steps))
    if not graphs:
        raise ValueError("no measured step to fit to")
    errors: list[float] = []
    for graph in graphs:
        others = [step for step in steps if step.graph != graph] or list(steps)
        fitted = InStep(factors=factors_of(others))
        errors += [error_of(fitted, step) for step in steps if step.graph == graph]
    return InStep(
        factors=factors_of(steps),
        steps=len(steps),
        graphs=len(graphs),
        error=fmean(errors),
        error_alone=fmean(error_of(ALONE, step) for step in steps),
    )


def step_us(in_step: InStep, parts_us: Mapping[Part, float]) -> float:
    """Predict a step from its parts."""
    return sum(time_us * in_step.factor(part) for part, time_us in parts_us.items())


def error_of(in_step: InStep, step: MeasuredStep) -> float:
    """Relative error of a predicted step."""
    return abs(step_us(in_step, step.parts_us) / step.measured_us - 1)


def factors_of(steps: Sequence[MeasuredStep]) -> Mapping[str, float]:
    """Fit the factors alone, by value of :class:`Part`."""
    parts = [part for part in Part if any(step.parts_us.get(part, 0.0) > 0 for step in steps)]
    shares = [[step.parts_us.get(part, 0.0) / step.measured_us for part in parts] for step in steps]
    prior = np.sqrt(STRENGTH) * np.eye(len(parts))
    matrix = np.concatenate([np.asarray(shares).reshape(len(steps), len(parts)), prior])
    target = np.concatenate([np.ones(len(steps)), np.sqrt(STRENGTH) * np.ones(len(parts))])
    factors = lsq_linear(matrix, target, bounds=(LEAST, np.inf)).x
    return dict(zip(map(str, parts), map(float, factors), strict=True))
