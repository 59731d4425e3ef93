"""The question a strategy answers: which of the free nodes become low.

Everything a strategy needs is here as values; it neither reads the model nor knows the device.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from campo_onnx.costs.table import CostTable
from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.casts import CastSite, cast_sites
from campo_onnx.optimize.graph_kind import UNKNOWN_KIND, GraphKind
from campo_onnx.optimize.lists.classify import Classification
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW, OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.plan.reason import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PossiblePad:
    """A Pad or a Slice: there while any of `if_padded` is padded and any of `if_unpadded` is not."""

    # if_padded, if_unpadded: names of products; None stands for somebody who never is padded.
    if_padded: tuple[str, ...]
    if_unpadded: tuple[str, ...] | None
    pad_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Gains and costs of zero-padding low matrix products to fit tensor cores."""

    gains_us: Mapping[str, float]  # what the kernel of a low product saves when it is padded, by node name
    alone_us: Mapping[str, float]
    pads: tuple[PossiblePad, ...]
    threshold_us: float = 0.0  # what padding a product must gain beyond its cost

    def __post_init__(self) -> None:
        for name in ("gains_us", "alone_us"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def cost_us(self, padded: Collection[str]) -> float:
        """Time that padding exactly the products in `padded` adds to the step; negative if it saves some."""
        pads_us = [
            pad.pad_us
            for pad in self.pads
            if any(name in padded for name in pad.if_padded)
            and (pad.if_unpadded is None or any(name not in padded for name in pad.if_unpadded))
        ]
        return math.fsum([*pads_us, *(-self.gains_us[name] for name in padded)])


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A graph with its classes, costs and the nodes that are not up for decision."""

    view: GraphView
    low: Precision
    classification: Classification
    ports: Mapping[str, Ports]
    fixed: Mapping[str, Verdict]  # nodes that stay as they are, with the reason
    costs: CostTable
    digest: str  # fingerprint of the graph, constants included: `Imported.digest`
    # What may be zero-padded besides, and what that is worth; None where nothing may.
    padding: Padding | None = None
    # What a Cast of a tensor costs in Casts, where that is not one: two where differentiating the graph adds
    # another.
    cast_factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # Weights that the session casts at once where most are read low; None where each has its own Cast.
    flat: FlatWeights | None = None
    kind: GraphKind = UNKNOWN_KIND
    # Nodes that are low in the given file, which may stay so whatever the lists say of their operators.
    low_as_given: frozenset[str] = frozenset()

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
        node_us = {name: cost.fp32_us for name, cost in self.costs.nodes.items()}
        return cast_sites(self.view, self.ports, self.low, self.costs.cast, node_us, self.cast_factors)

    @cached_property
    def tainted(self) -> frozenset[str]:
        """Nodes that a deny node makes unsafe."""
        return taint(self.view, self.classification) - self.low_as_given

    def informed(self, forbidden: Mapping[str, Verdict], released: Collection[str]) -> "Problem":
        """The same with what data says: nodes that would break, and tainted ones that are harmless."""
        if not forbidden and not released:
            return self
        classification = replace(self.classification, released=self.classification.released | {*released})
        return self.with_same_casts(classification=classification, fixed={**forbidden, **self.fixed})

    def with_same_casts(self, **changes: Any) -> "Problem":
        """The same with changes that concern no Cast: sites are listed once."""
        changed = replace(self, **changes)
        vars(changed)["sites"] = self.sites
        return changed

    @property
    def with_pads_in_costs(self) -> "Problem":
        """The same with products at what they take padded, for strategies that know of no padding.

        A product that is faster only on tensor cores would otherwise stay FP32 for its odd size, and
        never be padded. Each is charged with all its own Pads and its Slice, as if nothing were shared.
        """
        if self.padding is None:
            return self
        nodes = dict(self.costs.nodes)
        for name, gain_us in self.padding.gains_us.items():
            worth_us = gain_us - self.padding.alone_us[name] - self.padding.threshold_us
            if worth_us > 0:
                nodes[name] = replace(nodes[name], low_us=nodes[name].low_us - worth_us, on_tensor_cores=True)
        return replace(self, costs=replace(self.costs, nodes=nodes), padding=None)

    def op_class(self, node: str) -> OpClass:
        """Class of a node; one that is low in the given file is at least inferred."""
        own = self.classification.classes[node].op_class
        return OpClass.INFER if node in self.low_as_given and own not in MAY_BE_LOW else own

    def is_free(self, node: str) -> bool:
        """Whether a strategy may decide about the node (its class permitting)."""
        return node not in self.fixed

    def sites_of(self, node: str) -> tuple[CastSite, ...]:
        """Sites whose casts depend on the node's precision, each once."""
        tensors = dict.fromkeys(self.low_tensors(self.view.node[node]))
        return tuple(self.sites[t] for t in tensors if t in self.sites)

    def low_tensors(self, node: OpNode) -> Iterator[str]:
        """Tensors that become low with a node."""
        return self.ports[node.name].low_among(node.inputs, node.outputs)

    @property
    def starts_low(self) -> bool:
        """Whether the given file, with what is low in it, is among the possible answers."""
        return bool(self.low_as_given) and self.low_as_given.isdisjoint(self.fixed)

    @property
    def low_unchanged(self) -> frozenset[str]:
        """Nodes that are low in the plan that changes nothing."""
        return self.low_as_given if self.starts_low else frozenset()

    @property
    def flat_cast_us(self) -> float:
        """Time of the one Cast of all weights; 0 where there is no such Cast."""
        return 0.0 if self.flat is None else self.costs.cast.cast_us(self.flat.elements)

    def has_flat_cast(self, site: CastSite) -> bool:
        """Whether a new low version of a tensor can be part of the one that all weights have."""
        is_given = site.producer is None and site.existing is None
        return self.flat is not None and site.tensor in self.flat.sizes and is_given

    def flat_casts(self, low: frozenset[str]) -> tuple[CastSite, ...]:
        """Weights that are read low and need no Cast of their own, as all are cast at once."""
        if self.flat is None:
            return ()
        sites = [s for s in map(self.sites.get, self.flat.sizes) if s is not None and self.has_flat_cast(s)]
        cast = tuple(site for site in sites if site.new_cast(low) is not None)
        return cast if self.flat.are_cast_at_once([site.tensor for site in cast]) else ()

    def predicted_us(self, low: frozenset[str], *, at_once: bool | None = None) -> float:
        """Predicted step when exactly the nodes in `low` are low: nodes plus casts.

        Summed exactly and rounded once, so that the order of the parts decides nothing.

        `at_once`: whether weights are cast at once; None for what the session does.
        """
        flat = self.flat_casts(low) if at_once is None else ()
        is_flat = bool(flat) if at_once is None else at_once
        parts_us = [cost.low_us if name in low else cost.fp32_us for name, cost in self.costs.nodes.items()]
        is_paid = False
        for site in self.sites.values():
            if is_flat and self.has_flat_cast(site):
                is_paid |= site.new_cast(low) is not None
            else:
                parts_us.append(site.new_cast_us(low))
            parts_us += [-cast.cast_us for cast in site.dropped(low)]
        return math.fsum([*parts_us, self.flat_cast_us if is_paid else 0.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An answer: the nodes that become low, and a verdict for every free node."""

    low: frozenset[str]
    verdicts: Mapping[str, Verdict]  # by node name; nodes fixed beforehand keep the problem's verdict
    # Low products that are zero-padded; None leaves the choice to what pays.
    padded: frozenset[str] | None = None
    # What no assignment can go below, pads included, where the strategy proves one.
    lower_bound_us: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdicts", MappingProxyType(dict(self.verdicts)))
