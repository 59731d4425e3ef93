r"""Text that people read: durations and bytes with their units, and what strangers wrote made visible."""

import unicodedata

# Control characters, invisible and bidirectional formatting, line separators, halves of characters.
_SHOWN_AS_CODES = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    r"""Show what a terminal would obey, or nobody would see, as an escape sequence of Python.

    >>> print(visible("relu\x1b[2J\n\u202e"))
    relu\x1b[2J\n\u202e
    """
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in _SHOWN_AS_CODES else char for char in text
    )


_BASES = {
    "datasheet": "estimate from public figures",
    "model": "predicted from a calibration",
    "measure": "predicted from measured nodes",
}


def cost_basis(source: str) -> str:
    """Say what predicted times rest on.

    >>> cost_basis("datasheet")
    'estimate from public figures'
    """
    return _BASES.get(source, source)


def duration(us: float) -> str:
    """Write microseconds in the unit that suits them.

    >>> duration(12.34), duration(25630.0), duration(7.2e6)
    ('12.3 us', '25.63 ms', '7.20 s')
    """
    if abs(us) >= 1e6:
        return f"{us / 1e6:,.2f} s"
    return f"{us / 1000:,.2f} ms" if abs(us) >= 1000 else f"{us:,.1f} us"


def gigabytes(count: float) -> str:
    """Write bytes in the unit that suits them.

    >>> gigabytes(238.4e9), gigabytes(3.1e6), gigabytes(12.0)
    ('238.4 GB', '3.1 MB', '12 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"
