"""The plan: an edit script that says, of every node and Cast, what is written and why.

It owns no graph. It prints, diffs, saves and loads (:mod:`campo_onnx.optimize.plan.plan_file`);
:mod:`campo_onnx.optimize.plan.rewrite` executes it and decides nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import Use
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.edits import Decision, ExistingCast, LowConstant, PadBy, PlannedCast, PlannedPad
from campo_onnx.optimize.plan.plan_file import decode, encode, plan_format
from campo_onnx.optimize.plan.rules import RulePrices
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.runtime.machine import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A decision for every node of one graph on one target.

    Parameters
    ----------
    device, runtime, source
        The target it was decided for, and where the costs come from (``datasheet``: an estimate).
    captured
        Whether the costs are of a step that runs as a captured CUDA graph.
    lower_bound_us
        What no assignment under the same lists, safety rules and costs can go below; None where
        the strategy proves nothing. Equal to `predicted_us` but for rounding when optimal.
    unassigned_us
        Part of both steps that no decision covers: backward nodes of a forward graph's step that belong to
        none of its nodes.
    digest
        Fingerprint of the graph it fits, constants included; ``""`` for a plan of an earlier
        version, which can be read but not executed.
    reused, dropped
        Casts of the given graph that more nodes read, and those that are left out.
    ranges
        Declared and measured ranges of graph inputs that it relies on.
    rules
        What each rule costs, where that was asked for.
    """

    strategy: str
    lists: str
    device: str
    source: str
    low: Precision
    fp32_us: float
    predicted_us: float
    lower_bound_us: float | None = None
    unassigned_us: float = 0.0
    digest: str
    casts: tuple[PlannedCast, ...]
    reused: tuple[ExistingCast, ...] = ()
    dropped: tuple[ExistingCast, ...] = ()
    constants: tuple[LowConstant, ...] = ()
    pads: tuple[PlannedPad, ...] = ()
    ranges: Mapping[str, DeclaredRange] = field(default_factory=lambda: MappingProxyType({}))
    captured: bool = False
    runtime: str = DEFAULT
    decisions: tuple[Decision, ...]
    rules: RulePrices | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", MappingProxyType(dict(self.ranges)))
        if self.low is Precision.FP32:
            raise ValueError("FP32 is not a low precision")
        for what, names in (
            ("decisions on node", [d.node for d in self.decisions]),
            ("casts of tensor", [c.tensor for c in self.casts]),
            ("low versions of constant", [c.tensor for c in self.constants]),
            ("pads of node", [p.node for p in self.pads]),
            ("entries for Cast", [c.node for c in self.dropped] + [c.node for c in self.reused]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"there are two {what} {twice!r}")
        self._refuse_strangers()

    def _refuse_strangers(self) -> None:
        """Refuse nodes about which nothing is decided."""
        decided = {d.node for d in self.decisions}
        for what, tensor, nodes in (
            *(("cast", c.tensor, [use.node for use in c.consumers]) for c in self.casts),
            *(("cast", c.tensor, [c.producer] if c.producer else []) for c in self.casts),
            *(("Cast", c.tensor, [use.node for use in c.consumers]) for c in (*self.reused, *self.dropped)),
            *(("Cast", c.tensor, [c.node]) for c in (*self.reused, *self.dropped)),
            *(("pad", p.node, [p.node]) for p in self.pads),
        ):
            strange = next((node for node in nodes if node not in decided), None)
            if strange is not None:
                raise ValueError(f"the {what} of {tensor!r} names {strange!r}, which has no decision")

    @property
    def where(self) -> str:
        """The target in words; ONNX Runtime goes without saying."""
        runtime = "" if self.runtime == DEFAULT else f" in {self.runtime}"
        return f"{self.device}{runtime}{' captured as a CUDA graph' if self.captured else ''}"

    @cached_property
    def decision(self) -> Mapping[str, Decision]:
        """Decisions by node name."""
        return MappingProxyType({d.node: d for d in self.decisions})

    @cached_property
    def low_nodes(self) -> frozenset[str]:
        """Nodes this plan turns low (those that were low in the given graph not included)."""
        return frozenset(d.node for d in self.decisions if d.is_lowered)

    @cached_property
    def only_padded(self) -> frozenset[str]:
        """Constants whose low version is stored with its padding only: everybody who reads it low does so."""
        padded = {
            Use(pad.node, part.position) for pad in self.pads for part in pad.inputs if part.by is PadBy.FILE
        }
        return frozenset(c.tensor for c in self.constants if c.consumers and padded >= {*c.consumers})

    @cached_property
    def casts_at(self) -> Mapping[str, tuple[PlannedCast, ...]]:
        """New Casts at the inputs and outputs of each node that has any."""
        by_tensor: dict[str, dict[str, PlannedCast]] = {}
        for cast in self.casts:
            for node in (cast.producer, *(use.node for use in cast.consumers)):
                by_tensor.setdefault(node, {})[cast.tensor] = cast
        by_tensor.pop("", None)  # who makes graph inputs
        return MappingProxyType({node: tuple(casts.values()) for node, casts in by_tensor.items()})

    @property
    def cast_us(self) -> float:
        """Predicted time of all inserted casts."""
        return math.fsum(cast.cast_us for cast in self.casts)

    @property
    def pads_us(self) -> float:
        """Predicted time of all inserted Pads and Slices."""
        return math.fsum(pad.pads_us for pad in self.pads)

    @property
    def speedup(self) -> float:
        """Predicted FP32 step over predicted step."""
        return self.fp32_us / self.predicted_us if self.predicted_us else 1.0

    def to_json(self) -> str:
        """Write the plan as JSON, one decision a line so that plans diff well."""
        return encode(self, _FILE)

    @classmethod
    def from_json(cls, text: str | bytes, *, title: str = "the plan") -> "Plan":
        """Read a plan back.

        Raises
        ------
        UsageError
            If the text is not a plan, or one of a newer version.
        PlanMismatchError
            If it was changed after it was written.
        """
        return decode(text, title, _FILE)

    def check_fits(self, imported: Imported) -> None:
        """Raise PlanMismatchError unless the plan was made for this very graph."""
        if not self.digest:
            raise PlanMismatchError(
                "the plan was written by an earlier version of campo-onnx",
                why="it does not say which inputs and outputs change",
                remedy="Plan the model again.",
            )
        if self.digest != imported.digest:
            raise PlanMismatchError(
                "the plan does not fit the model",
                why="nodes, shapes, attributes or constants changed since it was made",
                remedy="Plan the model again, with the same --dim options.",
            )
        strange = self.decision.keys() ^ imported.view.node.keys()
        if strange:
            raise PlanMismatchError(
                "the plan does not fit the model",
                why=f"{min(strange)!r} is in one of them only: somebody edited the plan",
                remedy="Plan the model again.",
            )


_FILE = plan_format(Plan)
