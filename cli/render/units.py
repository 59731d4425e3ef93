"""Quantities with units."""

_VERDICT_STYLES = {"faster": "green", "slower": "bold red", "failed": "bold red", "not compared": "yellow"}


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
    """Write microseconds in the unit that suits them.

    Examples
    --------
    >>> duration(12.34), duration(25630.0), duration(7.2e6)
    ('12.3 us', '25.63 ms', '7.20 s')
    """
    if abs(us) >= 1e6:
        return f"{us / 1e6:,.2f} s"
    return f"{us / 1000:,.2f} ms" if abs(us) >= 1000 else f"{us:,.1f} us"


def verdict_style(verdict: str) -> str:
    """Style of the word that says how a graph compares."""
    return _VERDICT_STYLES.get(verdict, "")


def roughly(seconds: float) -> str:
    """Write about how long something will take.

    Examples
    --------
    >>> roughly(0.2), roughly(41.0), roughly(100.0), roughly(9000.0)
    ('about a second', 'about 41 s', 'about 2 min', 'about 2.5 h')
    """
    if seconds < 1.5:
        return "about a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"
