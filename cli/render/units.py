"""Quantities with units."""

from campo_onnx.wording import duration as duration
from campo_onnx.wording import gigabytes as gigabytes

_VERDICT_STYLES = {"faster": "green", "slower": "bold red", "failed": "bold red", "not compared": "yellow"}


def tflops(flops_per_s: float | None) -> str:
    """Write FLOP/s in T; a dash where it is not known."""
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:g} T"


def verdict_style(verdict: str) -> str:
    """Style of the word that says how a graph compares."""
    return _VERDICT_STYLES.get(verdict, "")


def roughly(seconds: float) -> str:
    """Write about how long something will take.

    >>> roughly(0.2), roughly(41.0), roughly(100.0), roughly(9000.0)
    ('about a second', 'about 41 s', 'about 2 min', 'about 2.5 h')
    """
    if seconds < 1.5:
        return "about a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"
