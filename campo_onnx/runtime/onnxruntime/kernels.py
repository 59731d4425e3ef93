"""Which operators ONNX Runtime has low-precision kernels for.

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
from campo_onnx.ops.signature import Signature

RELEASE = "1.31"
"""The release of ONNX Runtime that the table is of."""


class _Kernel(NamedTuple):
    since: int
    until: int
    precisions: frozenset[Precision]


@cache
def _kernels() -> Mapping[tuple[str, OpKey], tuple[_Kernel, ...]]:
    table: dict[tuple[str, OpKey], list[_Kernel]] = defaultdict(list)
    with files(__package__).joinpath("kernels.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            low = frozenset(p for p in low_precisions() if row.get(p.value) == "1")
            until = int(row["until"]) if row["until"] else 1 << 30
            key = (row["provider"], OpKey(row["domain"], row["op_type"]))
            table[key].append(_Kernel(int(row["since"]), until, low))
    return {key: tuple(found) for key, found in table.items()}


def has_kernel(op: OpKey, opset: int, provider: str, precision: Precision) -> bool:
    """Whether `provider` runs `op` in `precision`.

    Parameters
    ----------
    op
        The operator.
    opset
        Version of its domain that the model imports.
    provider
        ``"cuda"`` or ``"cpu"``.
    precision
        The low precision in question.

    Examples
    --------
    >>> has_kernel(OpKey("", "LogSoftmax"), 20, "cuda", Precision.FP16)
    True
    >>> has_kernel(OpKey("", "LogSoftmax"), 20, "cuda", Precision.BF16)
    False
    >>> has_kernel(OpKey("", "MatMul"), 20, "cpu", Precision.FP16)
    False
    """
    if any(
        kernel.since <= opset <= kernel.until and precision in kernel.precisions
        for kernel in _kernels().get((provider, op), ())
    ):
        return True
    return provider == "cuda" and precision in spec(op).training_kernels


_BATCH_NORMALIZATION = OpKey("", "BatchNormalization")
_BATCH_NORMALIZATION_TRAINS_SINCE = 14

_CPU_ADDS_UP_FP32_ONLY = {
    OpKey("", "ScatterElements"): frozenset({"add", "mul"}),
    OpKey("", "ScatterND"): frozenset({"add", "mul", "min", "max"}),
}


def refuses_attributes(signature: Signature, provider: str) -> bool:
    """Whether a kernel that is registered for a low precision fails at run time for the node's attributes."""
    reductions = _CPU_ADDS_UP_FP32_ONLY.get(signature.op, frozenset())
    return provider == "cpu" and signature.attribute("reduction", "none") in reductions


def never_loads(signature: Signature, provider: str) -> bool:
    """Whether the provider refuses a node in every precision, FP32 included, although it has the operator.

    ``BatchNormalization`` with ``training_mode=1`` is refused by the CUDA provider from opset 14 on.
    """
    return (
        provider == "cuda"
        and signature.op == _BATCH_NORMALIZATION
        and signature.opset >= _BATCH_NORMALIZATION_TRAINS_SINCE
        and bool(signature.attribute("training_mode", 0))
    )


def is_in_release(op: OpKey) -> bool:
    """Whether the release that the table was read from has kernels of `op`, on any provider.

    Examples
    --------
    >>> is_in_release(OpKey("com.microsoft", "GatedAdd")), is_in_release(OpKey("com.microsoft", "ConvGrad"))
    (True, False)
    """
    return any(known == op for _, known in _kernels())


def runs(op: OpKey, opset: int, provider: str, precision: Precision) -> bool:
    """Whether a graph with `op` in `precision` runs on `provider`, with a kernel of its own or not.

    ONNX Runtime's CPU provider runs an FP16 node it has no kernel for in FP32, between Casts of its
    own: slow, but no obstacle. It does so for no other 16-bit type, and the CUDA provider never.

    Examples
    --------
    >>> runs(OpKey("", "MatMul"), 20, "cpu", Precision.FP16)
    True
    >>> runs(OpKey("", "MatMul"), 20, "cpu", Precision.BF16)
    False
    """
    if has_kernel(op, opset, provider, precision):
        return True
    is_known = any(kernel.since <= opset <= kernel.until for kernel in _kernels().get((provider, op), ()))
    return provider == "cpu" and precision is Precision.FP16 and is_known
