"""Operators for which ONNX Runtime has low-precision kernels.

The table (``kernels.csv``) was read from the kernel registries of the onnxruntime and
onnxruntime-gpu 1.31.1 wheels. Gradient operators of the com.microsoft domain exist only in
ONNX Runtime's training build; their :class:`~campo_onnx.ops.spec.OpSpec` says which precisions those take.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.ops.registry import spec
from campo_onnx.ops.schema import schema_of
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.machine import CPU, CUDA

RELEASE = "1.31"
"""The release of ONNX Runtime that the table is of."""


class _Kernel(NamedTuple):
    since: int
    until: int | None  # the last version of the operator that it takes; None: that of `since` only
    precisions: frozenset[Precision]


@cache
def _kernels() -> Mapping[tuple[str, OpKey], tuple[_Kernel, ...]]:
    table: dict[tuple[str, OpKey], list[_Kernel]] = defaultdict(list)
    with files(__package__).joinpath("kernels.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            low = frozenset(p for p in low_precisions() if row.get(p.value) == "1")
            until = int(row["until"]) if row["until"] else None
            key = (row["provider"], OpKey(row["domain"], row["op_type"]))
            table[key].append(_Kernel(int(row["since"]), until, low))
    return {key: tuple(versions) for key, versions in table.items()}


def has_kernel(op: OpKey, opset: int, provider: str, precision: Precision) -> bool:
    """Whether `provider` runs `op` in `precision`.

    >>> has_kernel(OpKey("", "LogSoftmax"), 20, "cuda", Precision.FP16)
    True
    >>> has_kernel(OpKey("", "LogSoftmax"), 20, "cuda", Precision.BF16)
    False
    >>> has_kernel(OpKey("", "MatMul"), 20, "cpu", Precision.FP16)
    False
    """
    if any(precision in kernel.precisions for kernel in _kernels_at(op, opset, provider)):
        return True
    return provider == CUDA and precision in spec(op).training_kernels


def is_registered(op: OpKey, opset: int, provider: str) -> bool:
    """Whether `provider` has a kernel of `op` for the version that an opset holds, in any precision.

    A kernel without a last version is registered for one version of the operator only: where an opset
    brings a newer version of the schema, even one that just admits more types, that kernel no longer fits.

    >>> [is_registered(OpKey("", "MaxPool"), opset, "cuda") for opset in (20, 22)]
    [True, False]
    >>> [is_registered(OpKey("", "RandomUniform"), opset, "cpu") for opset in (20, 22)]
    [True, False]
    """
    return bool(_kernels_at(op, opset, provider))


def _kernels_at(op: OpKey, opset: int, provider: str) -> tuple[_Kernel, ...]:
    schema = schema_of(op, opset)
    version = opset if schema is None else schema.since_version
    return tuple(
        kernel
        for kernel in _kernels().get((provider, op), ())
        if kernel.since <= version <= (kernel.until or (kernel.since if schema is not None else version))
    )


_BATCH_NORMALIZATION = OpKey("", "BatchNormalization")
_BATCH_NORMALIZATION_TRAINS_SINCE = 14

_CPU_ADDS_UP_FP32_ONLY = {
    OpKey("", "ScatterElements"): frozenset({"add", "mul"}),
    OpKey("", "ScatterND"): frozenset({"add", "mul", "min", "max"}),
}


def refuses_attributes(signature: Signature, provider: str) -> bool:
    """Whether a kernel that is registered for a low precision fails at run time for the node's attributes."""
    reductions = _CPU_ADDS_UP_FP32_ONLY.get(signature.op, frozenset())
    return provider == CPU and signature.attribute("reduction", "none") in reductions


def never_loads(signature: Signature, provider: str) -> bool:
    """Whether the provider refuses a node in every precision, FP32 included, although it has the operator.

    ``BatchNormalization`` with ``training_mode=1`` is refused by the CUDA provider from opset 14 on.
    """
    return (
        provider == CUDA
        and signature.op == _BATCH_NORMALIZATION
        and signature.opset >= _BATCH_NORMALIZATION_TRAINS_SINCE
        and bool(signature.attribute("training_mode", 0))
    )


def is_outdated(signature: Signature, provider: str) -> bool:
    """Whether the provider has kernels of a node's operator, but none of the version that its opset holds."""
    op, opset = signature.op, signature.opset
    return (provider, op) in _kernels() and not is_registered(op, opset, provider)


def is_in_release(op: OpKey) -> bool:
    """Whether the release that the table was read from has kernels of `op`, on any provider.

    >>> is_in_release(OpKey("com.microsoft", "GatedAdd")), is_in_release(OpKey("com.microsoft", "ConvGrad"))
    (True, False)
    """
    return any(key == op for _, key in _kernels())


def runs(op: OpKey, opset: int, provider: str, precision: Precision) -> bool:
    """Whether a graph with `op` in `precision` runs on `provider`, with a kernel of its own or not.

    ONNX Runtime's CPU provider runs an FP16 node it has no kernel for in FP32, between Casts of its
    own: slow, but no obstacle. It does so for no other 16-bit type, and the CUDA provider never.

    >>> runs(OpKey("", "MatMul"), 20, "cpu", Precision.FP16)
    True
    >>> runs(OpKey("", "MatMul"), 20, "cpu", Precision.BF16)
    False
    """
    if has_kernel(op, opset, provider, precision):
        return True
    return provider == CPU and precision is Precision.FP16 and is_registered(op, opset, provider)
