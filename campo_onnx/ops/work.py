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
    """Arithmetic of one node.

    Parameters
    ----------
    flops
        Operations; for GEMM the sum over `gemms` (biases and activations ride along free).
    gemms
        The matrix products of a GEMM node: two for ConvGrad and RNNs, else one.
    known
        Whether every shape that FLOPs and bytes depend on is known. Unknown ones count zero.
    """

    kind: WorkKind
    flops: float
    gemms: tuple[GemmShape, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound op: FLOPs per element of its largest tensor, and how it reads.

    Parameters
    ----------
    flops
        1 for an add, about 10 for a transcendental function, 0 for pure movement.
    passes
        How often the inputs are read; a function where the attributes decide.
    gathers
        Whether of the first input only what is asked for is read.
    """

    flops: float = 1.0
    passes: int | Callable[[Signature], int] = 1
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix-product op.

    Parameters
    ----------
    formula
        The products, from the signature and the shapes at `inputs` and `outputs`.
    inputs, outputs
        Positions of those shapes; None is all inputs.
    axes
        The part each axis plays, for ops that zeros at the ends of their axes do not change; see
        :mod:`campo_onnx.ops.gemms`.
    """

    formula: Callable[..., tuple[GemmShape, ...]]
    inputs: tuple[int, ...] | None = (0, 1)
    outputs: tuple[int, ...] = ()
    axes: Callable[[Signature], tuple[str, ...] | None] | None = None


HostOnly: TypeAlias = WorkKind
WorkForm: TypeAlias = HostOnly | Stream | Gemm
"""An operator's statement of its work; a kind by itself is one that launches nothing."""

GUESS = Stream()
"""One FLOP per element: what an operator counts as that nothing is known of."""
