"""Settings of the whole process that a step runs with: threads, and FP32 products that stay FP32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ROUNDING = frozenset({"bf16", "tf32"})
"""Precisions in which a library multiplies FP32 by other arithmetic."""


@contextmanager
def as_typed(threads: int, *, on_gpu: bool) -> Iterator[None]:
    """Run with so many threads, and every product in the type that it is written in.

    By ``torch.set_float32_matmul_precision`` and the default of cuDNN, products of FP32 run as TF32 or BF16.
    What was set before is set again. `threads` counts on CPUs only.
    """
    before = torch.get_num_threads()
    libraries = (
        (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
        if on_gpu
        else (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv)
    )
    rounding = [(library, p) for library in libraries if (p := library.fp32_precision) in _ROUNDING]
    changes_threads = not on_gpu and before != threads
    for library, _ in rounding:
        library.fp32_precision = "ieee"
    if changes_threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if changes_threads:
            torch.set_num_threads(before)
        for library, precision in rounding:
            library.fp32_precision = precision
