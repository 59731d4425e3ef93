"""What a step may be written with: the standard's operators only, or also ONNX Runtime's own."""

from typing import Literal, TypeAlias, get_args

from campo_onnx.ops.kernels import runs
from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.precision import Precision

Target: TypeAlias = Literal["standard", "onnxruntime", "cuda", "cpu"]
"""Where a step is to run.

- ``"standard"``: anywhere; it has operators of the standard domain only.
- ``"onnxruntime"``: in ONNX Runtime, on any provider.
- ``"cuda"``: in ONNX Runtime, on its CUDA provider.
- ``"cpu"``: in ONNX Runtime, on its CPU provider; long sums over rows are written as sums of sums there.
"""

TARGETS: tuple[str, ...] = get_args(Target)

_PROVIDERS = {"standard": (), "onnxruntime": ("cpu", "cuda"), "cuda": ("cuda",), "cpu": ("cpu",)}


def may_use(target: Target, op_type: str) -> bool:
    """Whether ONNX Runtime's operator `op_type` can be written: every provider in question has a kernel.

    Examples
    --------
    >>> may_use("standard", "GatedAdd"), may_use("onnxruntime", "GatedAdd")
    (False, True)
    >>> may_use("onnxruntime", "BiasSoftmax"), may_use("cuda", "BiasSoftmax")
    (False, True)
    """
    providers = _PROVIDERS[target]
    return bool(providers) and all(
        runs(OpKey(MICROSOFT, op_type), 1, provider, Precision.FP16) for provider in providers
    )
