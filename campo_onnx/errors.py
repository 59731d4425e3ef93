"""Every error a user can meet, each with the exit code of the command line.

A message says what happened, where, why, and what to do about it. Anything that is not a
:class:`CampoError` is a bug of ours (exit code 1).
"""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import ClassVar


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return a remedy for an unknown word: the closest known one, and all of them.

    Examples
    --------
    >>> did_you_mean("H20", ["v100", "h200"])
    "Did you mean 'h200'? Known: v100, h200."
    >>> did_you_mean("toaster", ["v100", "h200"])
    'Known: v100, h200.'
    """
    words = [str(one) for one in candidates]
    near = get_close_matches(word.lower(), words, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return f"{guess}Known: {', '.join(words)}."


_LIBRARIES = frozenset(
    {"builtins", "campo_onnx", "google", "numpy", "onnx", "onnxruntime", "openvino", "sympy", "torch"}
)


def is_foreign(error: Exception) -> bool:
    """Whether an error comes from outside of a computation, as a time limit does.

    It goes on as it is: it says nothing about the model.

    Examples
    --------
    >>> is_foreign(TimeoutError("too long")), is_foreign(ValueError("no such axis"))
    (True, False)
    """
    kind = type(error)
    return isinstance(error, OSError | MemoryError) or kind.__module__.partition(".")[0] not in _LIBRARIES


def message_of(error: BaseException) -> str:
    """Return what an error of code that is not ours says; an empty text if it cannot say it.

    Examples
    --------
    >>> message_of(ValueError(" no such axis "))
    'no such axis'
    """
    try:
        return str(error).strip()
    except Exception:  # of its own `__str__`
        return ""


_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|can't start new thread|(cannot|can't|unable to|failed to) allocate"
    r"|_ALLOC(ATION)?_FAILED|cudaErrorMemoryAllocation|smaller than requested bytes|CUDA failure 2\b"
    r"|failed to map segment|memory allocation of \d+ bytes failed",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory is what lacks: the errors of Python, of C++ libraries and of devices are many.

    An error of ours counts by what it was raised from.

    >>> is_out_of_memory(RuntimeError("can't start new thread")), is_out_of_memory(RuntimeError("no"))
    (True, False)
    """
    return any(isinstance(one, MemoryError) or says_no_memory(message_of(one)) for one in _origins(error))


def says_no_memory(text: str) -> bool:
    """Say whether a library's message is about memory that it did not get."""
    return _NO_MEMORY.search(text) is not None


def _origins(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that are not ours in a chain; a MemoryError is left out where ours says more of it."""
    if not isinstance(error, CampoError):
        yield error
    if error.__cause__ is not None:
        yield from _origins(error.__cause__)
    elif isinstance(error, CampoError) and not isinstance(error.__context__, MemoryError | None):
        yield from _origins(error.__context__)


class CampoError(Exception):
    """Base of every error that is the input's or the machine's, not ours.

    Parameters
    ----------
    what
        What went wrong, with the name of the thing it went wrong with.
    why
        The reason, as far as it is known.
    remedy
        What the user can do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        message = self.what
        if self.why:
            message += f": {self.why}"
        if not message.endswith((".", "?")):
            message += "."
        if self.remedy:
            message += f" {self.remedy}"
        return message


class InternalError(CampoError):
    """A bug of ours, in one of many tasks: the others went on.

    Parameters
    ----------
    what, why, remedy
        See :class:`CampoError`.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "", traceback: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.traceback = traceback


class UsageError(CampoError):
    """The command or call was put together wrongly (an option, a list file, an output path)."""

    exit_code: ClassVar[int] = 2


class IndexOutOfRangeError(UsageError, IndexError):
    """An index or a label lies outside of what it looks up in."""


class ModelError(CampoError):
    """The file is not a valid ONNX model."""

    exit_code: ClassVar[int] = 3


class UnsupportedModelError(CampoError):
    """The model is valid, but holds something this version does not handle."""

    exit_code: ClassVar[int] = 4


class ProfileError(CampoError):
    """A profile, calibration or measurement store is unreadable or damaged."""

    exit_code: ClassVar[int] = 5


class CheckpointError(CampoError):
    """A checkpoint of a training session is unreadable, damaged, or another model's."""

    exit_code: ClassVar[int] = 5


class DeviceMismatchError(CampoError):
    """A profile or calibration belongs to another device or version."""

    exit_code: ClassVar[int] = 6


class PlanMismatchError(CampoError):
    """A plan does not fit the model it is applied to."""

    exit_code: ClassVar[int] = 7


class DeviceUnavailableError(CampoError):
    """The device asked for cannot be used on this machine."""

    exit_code: ClassVar[int] = 8


class OutOfMemoryError(CampoError):
    """Memory is used up, that of the machine or what the process may take of it."""

    exit_code: ClassVar[int] = 8

    def __init__(self) -> None:
        super().__init__(
            "out of memory",
            why="this machine has too little, or a limit is set (ulimit -v)",
            remedy="Free memory, take a smaller batch (--dim batch=SIZE), or use a larger machine.",
        )


class CheckFailedError(CampoError):
    """A check of a mixed-precision graph failed."""

    exit_code: ClassVar[int] = 9
