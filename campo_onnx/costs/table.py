"""Costs of nodes and Casts, by which every strategy decides."""

from collections.abc import Mapping
from dataclasses import dataclass

from campo_onnx.costs.evidence import CostSource
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import Target


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

    @property
    def fp32_us(self) -> float:
        """Predicted step with every node as it came."""
        return sum(cost.fp32_us for cost in self.nodes.values())
