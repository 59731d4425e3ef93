"""The edits of a plan: the decision of every node, Casts, constants in low precision, pads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from campo_onnx.ir.origin import modules_around, scope_in
from campo_onnx.ir.view import Use
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import NO_FACTS, Fact, Reason, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Precision of one node, and what changes at it.

    Parameters
    ----------
    precision
        What it runs in; None for a node that computes no floating point we change.
    gain_us
        What low precision saves on this node before casts (also where it was not chosen), the pads
        of this plan included.
    cast_us
        Time of the casts at its inputs and outputs in this plan.
    other_cast_us
        By how much all casts would take longer if this node alone had the other precision; None where no
        strategy may change it.
    low_inputs, low_outputs
        Positions of inputs that read, and outputs that make, the low version of their tensor.
        Empty for a node that the plan does not turn low.
    attribute
        Attribute that types its output, and is set to the low precision; ``""`` for none.
    follows
        Positions of inputs that read the low version though the node stays as it is: a reader of
        shapes whose FP32 tensor is no longer made.
    """

    node: str
    op_type: str
    op_class: OpClass
    precision: Precision | None
    decided_by: Reason
    facts: Mapping[str, Fact] = field(default_factory=lambda: NO_FACTS)
    fp32_us: float
    gain_us: float
    cast_us: float
    other_cast_us: float | None = None
    low_inputs: tuple[int, ...] = ()
    low_outputs: tuple[int, ...] = ()
    attribute: str = ""
    follows: tuple[int, ...] = ()
    module: str = ""
    kind: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", self.verdict.facts)
        if not self.is_lowered and (self.low_inputs or self.low_outputs or self.attribute):
            raise ValueError(f"node {self.node!r} is not turned low, but has low inputs or outputs")

    @property
    def verdict(self) -> Verdict:
        """Why it has its precision."""
        return Verdict(decided_by=self.decided_by, facts=self.facts)

    @property
    def reason(self) -> str:
        """The same as a sentence."""
        return self.verdict.reason

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules it is in, the outermost first."""
        return modules_around(scope_in(self.node, self.module))

    @property
    def is_lowered(self) -> bool:
        """Whether the plan turns it low (a node that was low in the given graph is not turned)."""
        return self.precision not in (None, Precision.FP32) and self.decided_by is not Reason.ALREADY_LOW

    @property
    def low_us(self) -> float:
        """Its time in low precision, with the pads it brings."""
        return self.fp32_us - self.gain_us

    @property
    def planned_us(self) -> float:
        """Its time as planned; a node that was low in the given graph takes the one time it has."""
        return self.low_us if self.is_lowered else self.fp32_us


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCast:
    """One new Cast, shared by everybody who wants the tensor in `dst`."""

    tensor: str  # name of the tensor in FP32
    src: Precision
    dst: Precision
    producer: str  # node that makes the tensor; `""` for a graph input
    consumers: tuple[Use, ...]  # who reads the result; empty when only the graph's caller does
    cast_us: float

    def __post_init__(self) -> None:
        if (self.src is Precision.FP32) == (self.dst is Precision.FP32):
            raise ValueError(f"a Cast of {self.tensor!r} must go from FP32 or to FP32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingCast:
    """One Cast of the given graph that is used by more, or by nobody any more."""

    node: str
    # tensor, low_tensor: the tensor in FP32, and its low version that is read from now on.
    tensor: str
    low_tensor: str
    consumers: tuple[Use, ...]  # who is turned to `low_tensor`
    cast_us: float  # its time: saved where it is dropped, spent anyway where it is reused


@dataclass(frozen=True, slots=True, kw_only=True)
class LowConstant:
    """One constant that gets a low version in the file."""

    tensor: str  # its name in FP32
    consumers: tuple[Use, ...]
    keeps_fp32: bool  # whether somebody still reads the FP32 one; otherwise that is left out


class PadBy(StrEnum):
    """The way in which a tensor of a padded node gets its size."""

    PAD = "pad"  # an input: a Pad, shared by every consumer that wants the same
    FILE = "file"  # an input: an initializer, padded where it is stored
    CHAIN = "chain"  # an input: another node's padded output as it is; an output: read at no other size
    SLICE = "slice"  # an output: a Slice behind the node brings its own size back


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedTensor:
    """One tensor of a padded node."""

    tensor: str  # its name in FP32, at its own size
    position: int  # where among the node's inputs or outputs
    ends: tuple[int, ...]  # zeros appended to each axis
    by: PadBy  # what brings it to that size, or an output back to its own


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPad:
    """One matrix product that is zero-padded to fit tensor cores."""

    node: str
    inputs: tuple[PaddedTensor, ...]
    output: PaddedTensor | None
    gain_us: float  # what its kernel saves, Pads and Slices not counted
    pads_us: float  # time of the Pads and Slices it brings; a shared Pad counts at its first consumer
