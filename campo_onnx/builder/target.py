"""What a step may be written with: the standard's operators only, or also ONNX Runtime's own."""

import re
from typing import Literal, TypeAlias, get_args

from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.onnxruntime.kernels import runs

Target: TypeAlias = Literal["standard", "onnxruntime", "cuda", "cpu"]
"""Where a step is to run.

- ``"standard"``: anywhere; it has operators of the standard domain only.
- ``"onnxruntime"``: in ONNX Runtime, on any provider.
- ``"cuda"``: in ONNX Runtime, on its CUDA provider; long sums over rows are one node there, elsewhere two.
- ``"cpu"``: in ONNX Runtime, on its CPU provider.
"""

TARGETS: tuple[str, ...] = get_args(Target)

_ALL_SINCE = (1, 31)
"""The first release of ONNX Runtime with every operator that is written: GatedAdd came with 1.29,
HyperConnectionPostMix with 1.31."""

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


def target_here(provider: str, release: str) -> Target:
    """Say what a graph may be written with that runs where it is written.

    Parameters
    ----------
    provider
        ``"cuda"`` or ``"cpu"``.
    release
        Of the ONNX Runtime that is installed.

    Examples
    --------
    >>> target_here("cuda", "1.31.1"), target_here("cpu", "1.32.0"), target_here("cuda", "1.28.0")
    ('cuda', 'cpu', 'standard')
    """
    if tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < _ALL_SINCE:
        return "standard"
    return "cuda" if provider == "cuda" else "cpu"
