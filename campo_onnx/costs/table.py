"""Costs of nodes and Casts, by which every strategy decides."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import ProfileError
from campo_onnx.ir.limits import MAX_ELEMENTS
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import Target

_LONGEST_US = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Time of one node in FP32 and in the low precision, without any Cast."""

    node: str
    # fp32_us, low_us: microseconds per step. `low_us` equals `fp32_us` for a node that cannot go low.
    fp32_us: float
    low_us: float
    on_tensor_cores: bool
    source: CostSource

    @property
    def gain_us(self) -> float:
        """Time that low precision saves, before Casts; negative where it takes longer."""
        return self.fp32_us - self.low_us


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Costs of one graph on one target."""

    target: Target
    source: CostSource  # where most of them come from; nodes say it of their own
    nodes: Mapping[str, NodeCost]  # by node name; every node of the view is there
    cast: CastModel
    # What they rest on: machine, software, date and accuracy of measurements, one sentence each.
    basis: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse times that cannot be added up: they come from figures that no device has."""
        for cost in self.nodes.values():
            self._refuse_endless(f"the node {cost.node!r}", cost.fp32_us, cost.low_us)
        cast = self.cast
        figures = cast.r_us, cast.c_i_us, *(knee.more_us for knee in cast.knees)
        if math.inf not in figures:  # such a Cast never pays
            self._refuse_endless("a Cast", *(MAX_ELEMENTS * figure for figure in figures))

    def _refuse_endless(self, what: str, *times_us: float) -> None:
        if not all(abs(time_us) <= _LONGEST_US for time_us in times_us):
            raise ProfileError(
                f"{what} would take {max(times_us, key=abs):.3g} us on {self.target.name}",
                why="no device is so slow",
                remedy="Check the figures that costs come from, or calibrate again.",
            )

    @property
    def fp32_us(self) -> float:
        """Predicted step with every node as it came."""
        return sum(cost.fp32_us for cost in self.nodes.values())
