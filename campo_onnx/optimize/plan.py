"""The plan: a value that says which node runs in which precision, where casts go, and why.

It owns no graph. It prints, diffs, saves and loads; :mod:`campo_onnx.optimize.rewrite` carries it
out and decides nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from campo_onnx.errors import PlanMismatchError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.precision import Precision

FORMAT_VERSION = 1
"""Version of the plan file; raised when a reader of the old one would misread the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Precision of one node.

    Parameters
    ----------
    node, op_type, op_class
        The node, its operator's label and its class (``allow``, ``infer``, ``clear``, ``deny``,
        ``unlisted``, ``unknown``).
    precision
        ``fp32``, ``fp16`` or ``bf16``; ``-`` for a node that computes no floating point we change.
    decided_by, reason
        Who decided, and why.
    gain_us
        What low precision saves on this node before casts (also where it was not chosen), the pads
        of this plan included.
    cast_us
        Time of the casts at its inputs and outputs in this plan.
    """

    node: str
    op_type: str
    op_class: str
    precision: str
    decided_by: str
    reason: str
    fp32_us: float
    gain_us: float
    cast_us: float

    @property
    def low_us(self) -> float:
        """Its time in low precision, with the pads it brings."""
        return self.fp32_us - self.gain_us

    @property
    def planned_us(self) -> float:
        """Its time as planned; a node that was low in the given graph takes the one time it has."""
        is_lowered = self.precision != Precision.FP32.value and self.decided_by != "graph"
        return self.low_us if is_lowered else self.fp32_us


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCast:
    """One Cast, shared by every consumer that wants the tensor in `dst`.

    Parameters
    ----------
    tensor
        Name of the tensor in FP32.
    src, dst
        Precisions it is cast from and to.
    producer
        Node that makes the tensor; ``""`` for a graph input.
    consumers
        Nodes that read the result; empty when only the graph's caller does.
    cast_us
        Predicted time.
    """

    tensor: str
    src: str
    dst: str
    producer: str
    consumers: tuple[str, ...]
    cast_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedTensor:
    """One tensor of a padded node.

    Parameters
    ----------
    tensor
        Its name in FP32, at its own size.
    position
        Where among the node's inputs or outputs.
    ends
        Zeros appended to each axis.
    by
        What brings it to that size: ``pad`` (a Pad, shared by every reader that wants the same),
        ``file`` (an initializer, padded where it is stored) or ``chain`` (the padded output of
        another node, as it is). For an output what brings it back: ``slice``, or ``chain`` where
        nobody reads it at its own size.
    """

    tensor: str
    position: int
    ends: tuple[int, ...]
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPad:
    """One matrix product that is zero-padded to fit tensor cores.

    Parameters
    ----------
    node
        The node.
    inputs
        Its inputs that grow.
    output
        Its output, or None where that keeps its size.
    gain_us
        What its kernel saves, Pads and Slices not counted.
    pads_us
        Time of the Pads and Slices it brings; a shared Pad counts at its first reader.
    """

    node: str
    inputs: tuple[PaddedTensor, ...]
    output: PaddedTensor | None
    gain_us: float
    pads_us: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A decision for every node of one graph on one device.

    Parameters
    ----------
    strategy, lists
        How it was decided.
    device, source
        The device it was decided for, and where the costs come from (``datasheet``: an estimate).
    low
        The low precision, ``fp16`` or ``bf16``.
    fp32_us, predicted_us
        Predicted step of the given graph and of the planned one.
    casts, pads, decisions
        What to insert, and the precision of every node.
    digest
        Fingerprint of the graph it fits.
    lower_bound_us
        What no assignment under the same lists, safety rules and costs can go below; None where
        the strategy proves nothing, or where pads were added, which go below it. Equal to
        `predicted_us` but for rounding when optimal.
    """

    strategy: str
    lists: str
    device: str
    source: str
    low: str
    fp32_us: float
    predicted_us: float
    casts: tuple[PlannedCast, ...]
    pads: tuple[PlannedPad, ...]
    decisions: tuple[Decision, ...]
    digest: str
    lower_bound_us: float | None = None

    @cached_property
    def low_nodes(self) -> frozenset[str]:
        """Nodes this plan turns low (those that were low in the given graph not included)."""
        return frozenset(
            d.node for d in self.decisions if d.precision == self.low and d.decided_by != "graph"
        )

    @property
    def cast_us(self) -> float:
        """Predicted time of all inserted casts."""
        return sum(cast.cast_us for cast in self.casts)

    @property
    def pads_us(self) -> float:
        """Predicted time of all inserted Pads and Slices."""
        return sum(pad.pads_us for pad in self.pads)

    @property
    def speedup(self) -> float:
        """Predicted FP32 step over predicted step."""
        return self.fp32_us / self.predicted_us if self.predicted_us else 1.0

    def to_json(self) -> str:
        """Write the plan as JSON, one decision a line so that plans diff well."""
        document: dict[str, Any] = {"format_version": FORMAT_VERSION}
        document |= {name: getattr(self, name) for name in ("strategy", "lists", "device", "source", "low")}
        document |= {
            name: getattr(self, name) for name in ("fp32_us", "predicted_us", "lower_bound_us", "digest")
        }
        head = json.dumps(document, indent=1)[:-2]
        for name in ("casts", "pads", "decisions"):
            lines = ",\n  ".join(json.dumps(asdict(row)) for row in getattr(self, name))
            head += f',\n "{name}": [' + (f"\n  {lines}\n ]" if lines else "]")
        return head + "\n}\n"

    @classmethod
    def from_json(cls, text: str, *, title: str = "the plan") -> "Plan":
        """Read a plan back.

        Raises
        ------
        UsageError
            If the text is no plan, or one of another format version.
        """
        try:
            document = json.loads(text)
            version = document.pop("format_version")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{title} is not a plan file", remedy="Write one with: campo-onnx optimize MODEL --plan FILE"
            ) from None
        if version != FORMAT_VERSION:
            raise UsageError(
                f"{title} has format version {version}",
                why=f"this version reads {FORMAT_VERSION}",
                remedy="Plan the model again.",
            )
        try:
            document["casts"] = tuple(
                PlannedCast(**row | {"consumers": tuple(row["consumers"])}) for row in document["casts"]
            )
            document["decisions"] = tuple(Decision(**row) for row in document["decisions"])
            document["pads"] = tuple(_pad_of(row) for row in document["pads"])
            return cls(**document)
        except (KeyError, TypeError) as error:
            raise UsageError(f"{title} is damaged", why=str(error), remedy="Plan the model again.") from None

    def check_fits(self, view: GraphView) -> None:
        """Raise PlanMismatchError unless the plan was made for this very graph."""
        if self.digest != view.digest:
            raise PlanMismatchError(
                "the plan does not fit the model",
                why="nodes, shapes or attributes changed since it was made",
                remedy="Plan the model again, with the same --dim options.",
            )


def _pad_of(row: Mapping[str, Any]) -> PlannedPad:
    def tensor_of(part: Mapping[str, Any]) -> PaddedTensor:
        return PaddedTensor(**{**part, "ends": tuple(part["ends"])})

    output = None if row["output"] is None else tensor_of(row["output"])
    return PlannedPad(**{**row, "inputs": tuple(map(tensor_of, row["inputs"])), "output": output})
