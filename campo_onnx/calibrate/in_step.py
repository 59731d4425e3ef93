"""Node times in a step relative to nodes timed alone: factors fitted to measured steps.

A runtime computes chains of element-wise nodes as one kernel, and convolutions in a layout of their own,
which what follows them has to undo. No node that is timed alone shows that. So nodes fall into parts by how
they stand in the graph, and for each part measured steps of whole plans say how much longer or shorter its
nodes take there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from types import MappingProxyType

STRENGTH = 0.3
"""Weight of the factor 1 for every part, in squared relative errors of a step: what a few steps do not show
stays as it was timed."""


class Part(StrEnum):
    """Nodes that run in a step as those of their kind do."""

    PRODUCTS = "products"
    CONVOLUTIONS = "convolutions"
    ELEMENTWISE = "element-wise"
    FUSED = "element-wise, behind another"  # runtimes may compute them in the kernel of the node before
    REDUCTIONS = "reductions"  # with normalizations, softmax and pooling
    MOVEMENT = "movement"
    LAYOUTS = "layouts"  # views of what a convolution left channels last: the runtime transposes it first
    CASTS = "casts"
    VIEWS = "views"


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
        """Refuse a step that took no time; make the mapping read-only."""
        if not self.measured_us > 0:
            raise ValueError(f"measured_us is {self.measured_us}, and must be above 0")
        object.__setattr__(self, "parts_us", MappingProxyType(dict(self.parts_us)))


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """Times of nodes in a step, as multiples of their times alone.

    Parameters
    ----------
    factors
        By value of :class:`Part`; a part that is missing has the factor 1.
    error, error_alone
        Mean relative error of predicted steps of graphs kept out of the fit, one graph at a time, with
        factors and without.
    """

    factors: Mapping[str, float]
    steps: int = 0
    graphs: int = 0
    error: float = 0.0
    error_alone: float = 0.0

    def __post_init__(self) -> None:
        """Refuse factors of unknown parts, and those below zero; make the mapping read-only."""
        for name, factor in self.factors.items():
            if name not in {part.value for part in Part}:
                raise ValueError(f"unknown part {name!r}")
            if not 0 <= factor < float("inf"):
                raise ValueError(f"the factor of {name} is {factor}, and must not be negative")
        object.__setattr__(self, "factors", MappingProxyType(dict(self.factors)))

    def factor(self, part: Part) -> float:
        """The factor of a part."""
        return self.factors.get(part.value, 1.0)

    def step_us(self, parts_us: Mapping[Part, float]) -> float:
        """Predict a step from its parts."""
        return sum(time_us * self.factor(part) for part, time_us in parts_us.items())


ALONE = InStep(factors={})
"""Every node takes in a step what it takes alone, and views of channels-last tensors take a Transpose."""


def fit_in_step(steps: Sequence[MeasuredStep]) -> InStep:
    """Fit the factors, and say what they are worth on graphs that they were not fitted to.

    Relative errors of steps count, in squares; factors are not negative, and drawn to 1
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
        fitted = InStep(factors=_factors(others))
        errors += [error_of(fitted, step) for step in steps if step.graph == graph]
    return InStep(
        factors=_factors(steps),
        steps=len(steps),
        graphs=len(graphs),
        error=fmean(errors),
        error_alone=fmean(error_of(ALONE, step) for step in steps),
    )


def error_of(in_step: InStep, step: MeasuredStep) -> float:
    """Relative error of a predicted step."""
    return abs(in_step.step_us(step.parts_us) / step.measured_us - 1)


def _factors(steps: Iterable[MeasuredStep]) -> Mapping[str, float]:
    import numpy as np
    from scipy.optimize import nnls

    steps = list(steps)
    parts = [part for part in Part if any(step.parts_us.get(part, 0.0) > 0 for step in steps)]
    shares = [[step.parts_us.get(part, 0.0) / step.measured_us for part in parts] for step in steps]
    prior = np.sqrt(STRENGTH) * np.eye(len(parts))
    matrix = np.concatenate([np.asarray(shares).reshape(len(steps), len(parts)), prior])
    target = np.concatenate([np.ones(len(steps)), np.sqrt(STRENGTH) * np.ones(len(parts))])
    return dict(zip(map(str, parts), map(float, nnls(matrix, target)[0]), strict=True))
