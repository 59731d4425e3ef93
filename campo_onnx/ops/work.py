"""The work of a node: the value, and the forms in which operators state it.

One multiply-add is two FLOPs. GEMM counts are exact; those of memory-bound ops are rough (their
time is their bytes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.signature import Signature


class WorkKind(Enum):
    """The resource that limits a node."""

    GEMM = "gemm"  # matrix products and convolutions: arithmetic, tensor-core candidates
    STREAM = "stream"  # everything that reads and writes its tensors: memory bandwidth
    VIEW = "view"  # another name for the same bytes: the host only
    NONE = "none"  # answers from shapes or is known before the step: the host only


HOST_ONLY = frozenset({WorkKind.VIEW, WorkKind.NONE})
"""Kinds that launch no kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Arithmetic of one node."""

    kind: WorkKind
    flops: float  # operations; for GEMM the sum over `gemms` (biases and activations ride along free)
    # The matrix products of a GEMM node: two for ConvGrad and RNNs, else one.
    gemms: tuple[GemmShape, ...] = ()
    # Rows that a reduction or normalization takes one by one, each by a block of threads on a GPU; else zero.
    rows: int = 0
    # Whether every shape that FLOPs and bytes depend on is known. Unknown ones count zero.
    known: bool = True


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound op: FLOPs per element of its largest tensor, and how it reads."""

    flops: float = 1.0  # 1 for an add, about 10 for a transcendental function, 0 for pure movement
    # How often the inputs are read; a function where the attributes decide.
    passes: int | Callable[[Signature], int] = 1
    gathers: bool = False  # whether of the first input only what is asked for is read
    # The shape whose elements are rows that are reduced or normalized, each by itself.
    rows: Callable[[Signature], tuple[int, ...] | None] | None = None


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix-product op."""

    # The products, from the signature and the shapes at `inputs` and `outputs`.
    formula: Callable[..., tuple[GemmShape, ...]]
    # inputs, outputs: positions of those shapes; None is all inputs.
    inputs: tuple[int, ...] | None = (0, 1)
    outputs: tuple[int, ...] = ()
    # The part each axis plays (`ops/gemms.py`), for ops that zeros at the ends of their axes do not change.
    axes: Callable[[Signature], tuple[str, ...] | None] | None = None


HostOnly: TypeAlias = WorkKind
WorkForm: TypeAlias = HostOnly | Stream | Gemm
"""An operator's statement of its work; a kind by itself is one that launches nothing."""

GUESS = Stream()
"""One FLOP per element: what an operator counts as that nothing is known of."""
