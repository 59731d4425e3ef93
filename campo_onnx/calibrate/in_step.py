"""Node times in a step relative to nodes timed alone: factors that measured steps tell.

A runtime computes chains of element-wise nodes as one kernel, and convolutions in a layout of their own,
which what follows them has to undo. No node that is timed alone shows that. So nodes fall into parts by how
they stand in the graph, and for each part measured steps of whole plans say how much longer or shorter its
nodes take there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


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
class InStep:
    """Times of nodes in a step, as multiples of their times alone."""

    factors: Mapping[str, float]  # by value of Part; a part that is missing has the factor 1
    steps: int = 0
    graphs: int = 0
    # error, error_alone: mean relative error of predicted steps of graphs kept out of the fit, one graph at a
    # time, with factors and without.
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
