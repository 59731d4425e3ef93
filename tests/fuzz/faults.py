"""Faults at the calls of a process that change files; see ``faults.c``."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

_SOURCE = Path(__file__).with_name("faults.c")
_READY = "CAMPO_ONNX_FAULTS"


class Fault(IntEnum):
    """Faults that a call meets; numbers as in ``faults.c``."""

    KILLED = 0
    DISK_FULL = 1


class _Shared(ctypes.Structure):
    _fields_ = (("seen", ctypes.c_long), ("met", ctypes.c_long))


def can_be_injected() -> bool:
    """Whether there is what it takes: Linux, and a C compiler."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def start_again_with_faults(module: str, folder: Path) -> None:
    """Start this program once more, with what injects faults loaded before everything else.

    Parameters
    ----------
    module
        What to run; it gets the same command line.
    folder
        Where the library is built.
    """
    library = folder.resolve() / "faults.so"
    if os.environ.get(_READY) == str(library):
        return
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), _READY: str(library)}
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)


class Trap:
    """A place in memory, shared with a child, in which faults say whether they were met."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._shared = _Shared.from_buffer(self._memory)

    @property
    def seen(self) -> int:
        """Calls that were counted."""
        return int(self._shared.seen)

    @property
    def met(self) -> bool:
        """Whether one met the fault."""
        return bool(self._shared.met)

    def at(self, number: int, fault: Fault) -> Callable[[], None]:
        """Return what a child calls so that its `number`-th call meets a fault."""
        self._shared.seen = self._shared.met = 0

        def arm() -> None:
            ctypes.CDLL(None).faults_arm(ctypes.c_long(number), int(fault), ctypes.byref(self._shared))

        return arm
