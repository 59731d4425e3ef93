"""Quantities with units."""

from campo_onnx.wording import duration as duration
from campo_onnx.wording import gigabytes as gigabytes


def tflops(flops_per_s: float | None) -> str:
    """Write FLOP/s in T; a dash where it is not known."""
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:g} T"
