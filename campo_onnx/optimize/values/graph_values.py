"""A graph with the ranges of its values and what else is known of it."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import current
from campo_onnx.ops.values.need import Needs
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.plan.reason import Verdict
from campo_onnx.optimize.values.loss_scale import LossScaling

Verdicts: TypeAlias = Iterator[tuple[str, Verdict]]
"""Nodes that stay FP32, each with the reason."""

_NARROW = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphValues:
    """A graph with all that a search for lost values goes by."""

    view: GraphView
    ports: Mapping[str, Ports]
    ranges: Mapping[str, ValueRange]
    low: Precision
    scaling: LossScaling
    declared: AbstractSet[str] = frozenset()
    # How exactly nodes need inputs that decide which way control flow goes, by node name.
    needs: Mapping[str, Needs] = field(default_factory=dict)
    # Turns of the loops that add to a state and return it, by output.
    loops: Mapping[str, float] = field(default_factory=dict)
    # Tensors that are the same in every step, and those of them whose elements all are one number.
    fixed: AbstractSet[str] = frozenset()
    computed: AbstractSet[str] = frozenset()

    @property
    def is_narrow(self) -> bool:
        """Whether the low precision has fewer exponents than FP32."""
        return self.low.largest <= _NARROW

    @property
    def forward_nodes(self) -> Iterator[OpNode]:
        """The nodes that the loss is computed by, or all of a graph without a loss."""
        forward = self.scaling.forward
        return (node for node in self.view.nodes if not forward or node.name in forward)

    def range(self, tensor: str) -> ValueRange:
        """The range of a tensor."""
        return self.ranges.get(tensor, UNKNOWN)

    def of(self, tensors: Iterable[str]) -> list[ValueRange]:
        """The ranges of those of some tensors that are there."""
        return [self.ranges.get(t, UNKNOWN) for t in tensors if t]

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is a constant, or one number that is computed of constants."""
        return tensor in self.computed or self.view.is_constant(tensor)

    def number(self, tensor: str) -> float | None:
        """The number that all elements of a constant are."""
        r = self.range(tensor)
        return r.lowest if self.is_constant(tensor) and r.lowest == r.highest else None

    def fits(self, tensor: str) -> bool:
        """Whether the low precision is proved to hold the largest value of a tensor."""
        return self.range(tensor).bound <= self.low.largest


def computed_numbers(fixed: AbstractSet[str], ranges: Mapping[str, ValueRange]) -> frozenset[str]:
    """Fixed tensors whose elements all are one number: a fill, a number from FP64.

    A table that is computed is data: nodes that compute it in a low precision round it.
    """
    return frozenset(t for t in fixed if t in ranges and ranges[t].lowest == ranges[t].highest)


@remembered
def fixed_tensors(view: GraphView) -> frozenset[str]:
    """Tensors that are the same in every step: small constants, and what is computed of constants."""
    specs, tensors = current(), set(view.values)
    for node in view.nodes:
        read = [t for t in node.inputs if t]
        is_fixed = bool(read) and all(t in tensors or view.is_constant(t) for t in (*read, *node.captures))
        if is_fixed and not specs.spec(node.op).draws:
            tensors.update(filter(None, node.outputs))
    return frozenset(tensors)
