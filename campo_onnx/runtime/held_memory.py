"""Memory that the C library keeps while large tensors come and go."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # settings of glibc, by their numbers in malloc.h
_NEVER = (1 << 31) - 1
_USUAL = {_MMAP_MAX: 65_536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
"""Settings that glibc arrives at by itself once a tensor of 32 MiB was freed. After the first that is set it
adapts them no more, so that these are set at the end."""


@contextmanager
def held_memory() -> Iterator[None]:
    """Let freed memory be used again meanwhile, and give it back at the end; elsewhere than on glibc nothing.

    By default each large tensor is taken from the kernel and given back at once. A step that is run once,
    piece by piece, then spends up to two fifths of its time on pages that the kernel clears anew.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        for setting, value in _USUAL.items():
            library.mallopt(setting, value)
        library.malloc_trim(0)
