"""Warnings of the backend, each once in a process."""

import warnings

_warned: set[str] = set()


def warn_once(message: str, *, about: str | None = None) -> None:
    """Warn, unless it was done before; `about` is what is warned of once, where messages of it differ."""
    about = message if about is None else about
    if about not in _warned:
        _warned.add(about)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
