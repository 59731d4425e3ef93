"""Quantities with units."""


def tflops(flops_per_s: float | None) -> str:
    """Write FLOP/s in T; a dash where it is not known."""
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:g} T"


def gigabytes(count: float) -> str:
    """Write bytes in the unit that suits them.

    Examples
    --------
    >>> gigabytes(238.4e9), gigabytes(3.1e6), gigabytes(12.0)
    ('238.4 GB', '3.1 MB', '12 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"


def duration(us: float) -> str:
    """Write microseconds in the unit that suits them."""
    return f"{us / 1000:,.2f} ms" if abs(us) >= 1000 else f"{us:,.1f} us"
