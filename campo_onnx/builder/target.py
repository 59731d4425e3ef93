"""Operators that a graph may have: the standard's only, or also ONNX Runtime's own."""

import re
from functools import cache
from typing import Final, Literal, TypeAlias

from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import runtime_called

STANDARD: Final = "standard"
CUDA: Final = "cuda"
CPU: Final = "cpu"

Target: TypeAlias = Literal["standard", "cuda", "cpu"]
"""Runtime and provider of a graph.

- ``"standard"``: anywhere; it has operators of the standard domain only.
- ``"cuda"``: in ONNX Runtime, on its CUDA provider; long sums over rows are one node there, elsewhere two.
- ``"cpu"``: in ONNX Runtime, on its CPU provider.
"""

MOST_JOINED = 32
"""Tensors of one Concat: while a CUDA graph is captured, ONNX Runtime's takes no more."""

_ALL_SINCE = (1, 29)
"""The first release of ONNX Runtime with every operator that is written: it brought GatedAdd."""


@cache
def may_use(target: Target, op_type: str) -> bool:
    """Whether ONNX Runtime's operator `op_type` can be written: the provider has a kernel.

    >>> may_use("standard", "GatedAdd"), may_use("cpu", "GatedAdd"), may_use("cpu", "BiasDropout")
    (False, True, False)
    """
    if target == STANDARD:
        return False
    signature = make_signature(OpKey(MICROSOFT, op_type), (), (), opset=1)
    return runtime_called(DEFAULT).support(signature, target, Precision.FP16) is not Support.REFUSED


def target_here(provider: str, release: str) -> Target:
    """Say what a graph may be written with that runs where it is written.

    `release`: of the ONNX Runtime that is installed; ``""`` if none is: then the newest will be.

    >>> target_here("cuda", "1.31.1"), target_here("cpu", "1.32.0"), target_here("cuda", "1.28.0")
    ('cuda', 'cpu', 'standard')
    """
    if release and tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < _ALL_SINCE:
        return STANDARD
    return CUDA if provider == CUDA else CPU
