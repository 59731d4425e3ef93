"""Quantities with units."""


def tflops(flops_per_s: float | None) -> str:
    """Write FLOP/s in T; a dash where it is not known."""
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:g} T"


def duration(us: float) -> str:
    """Write microseconds in the unit that suits them."""
    return f"{us / 1000:,.2f} ms" if abs(us) >= 1000 else f"{us:,.1f} us"
