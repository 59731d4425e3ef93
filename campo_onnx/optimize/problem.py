"""The question a strategy answers: which of the free nodes become low.

Everything a strategy needs is here as values; it neither reads the model nor knows the device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from campo_onnx.costs.table import CostTable
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.casts import CastSite, cast_sites
from campo_onnx.optimize.classify import Classification
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.reason import Verdict


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A graph with its classes, costs and the nodes that are not up for decision.

    Parameters
    ----------
    view
        The graph.
    low
        The low precision.
    classification
        Class of every node.
    ports
        Ports of every node.
    fixed
        Nodes that stay as they are, with the reason.
    costs
        Times of nodes and casts.
    digest
        Fingerprint of the graph, constants included (:attr:`campo_onnx.ir.importer.Imported.digest`).
    cast_factors
        What a Cast of a tensor costs in Casts, where that is not one: two where differentiating
        the graph adds another.

    Raises
    ------
    ValueError
        If a node has no ports, costs or class, or something is said of a node that does not exist.
    """

    view: GraphView
    low: Precision
    classification: Classification
    ports: Mapping[str, Ports]
    fixed: Mapping[str, Verdict]
    costs: CostTable
    digest: str
    cast_factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name in ("ports", "fixed", "cast_factors"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        nodes = self.view.node.keys()
        for what, names in (
            ("ports", self.ports.keys()),
            ("costs", self.costs.nodes.keys()),
            ("a class", self.classification.classes.keys()),
        ):
            if missing := nodes - names:
                raise ValueError(f"node {min(missing)!r} has no {what}")
        if strange := self.fixed.keys() - nodes:
            raise ValueError(f"there is no node {min(strange)!r} to be fixed")

    @cached_property
    def sites(self) -> Mapping[str, CastSite]:
        """Every tensor around which Casts may be needed, by name."""
        return cast_sites(self.view, self.ports, self.costs, self.low, self.cast_factors)

    def op_class(self, node: str) -> OpClass:
        """Class of a node."""
        return self.classification.classes[node].op_class

    def is_free(self, node: str) -> bool:
        """Whether a strategy may decide about the node (its class permitting)."""
        return node not in self.fixed

    def sites_of(self, node: str) -> tuple[CastSite, ...]:
        """Sites whose casts depend on the node's precision, each once."""
        op_node, ports = self.view.node[node], self.ports[node]
        tensors = dict.fromkeys(op_node.inputs[i] for i in sorted(ports.low_inputs))
        tensors |= dict.fromkeys(op_node.outputs[i] for i in sorted(ports.low_outputs))
        return tuple(self.sites[t] for t in tensors if t in self.sites)

    def dropped_casts(self, low: frozenset[str]) -> frozenset[str]:
        """Existing Casts that nobody needs any more."""
        return frozenset(cast.node for site in self.sites.values() for cast in site.dropped(low))

    def predicted_us(self, low: frozenset[str]) -> float:
        """Predicted step when exactly the nodes in `low` are low: nodes plus casts.

        Summed exactly and rounded once, so that the order of the parts decides nothing.
        """
        parts_us = [cost.low_us if name in low else cost.fp32_us for name, cost in self.costs.nodes.items()]
        for site in self.sites.values():
            parts_us.append(site.new_cast_us(low))
            parts_us += [-cast.cast_us for cast in site.dropped(low)]
        return math.fsum(parts_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An answer: the nodes that become low, and a verdict for every free node.

    Parameters
    ----------
    low
        Names of nodes.
    verdicts
        By node name; nodes fixed beforehand keep the problem's verdict.
    lower_bound_us
        What no assignment can go below, where the strategy proves one.
    """

    low: frozenset[str]
    verdicts: Mapping[str, Verdict]
    lower_bound_us: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdicts", MappingProxyType(dict(self.verdicts)))
