"""Regular expressions for names of nodes, which strangers write in policies, and names, which they write too.

Python's matcher can take for ever on a short expression and a short name, and it cannot be told when to
give up. So where the operating system has a clock that interrupts, it does.
"""

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from campo_onnx.errors import UsageError

MATCH_LIMIT_S = 10.0
"""Longest time for matching the names of one graph; a hundred thousand names take a tenth of a second."""


class _TooSlowError(Exception):
    """The clock has rung."""


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile an expression."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--keep-fp32 {text[:200]!r} is not a regular expression", why=str(error)) from None


def matching(patterns: Sequence[re.Pattern[str]], names: Iterable[str]) -> frozenset[str]:
    """Find the names that an expression matches as a whole."""
    if not patterns:
        return frozenset()
    with _bounded(patterns):
        return frozenset(name for name in names if any(p.fullmatch(name) for p in patterns))


def first_partly_matching(pattern: re.Pattern[str], names: Iterable[str]) -> str | None:
    """Find a name of which an expression matches a part; raises as :func:`matching` does."""
    with _bounded([pattern]):
        return next((name for name in names if pattern.search(name)), None)


@contextmanager
def _bounded(patterns: Sequence[re.Pattern[str]]) -> Iterator[None]:
    """Interrupt what takes too long, in a process whose clock is free and in the thread that hears it."""
    is_free = hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, MATCH_LIMIT_S)
    try:
        yield
    except _TooSlowError:
        texts = ", ".join(repr(pattern.pattern[:100]) for pattern in patterns[:3])
        raise UsageError(
            f"--keep-fp32 {texts} takes more than {MATCH_LIMIT_S:g} seconds to match the names of the graph",
            why="repetitions within repetitions, or many in a row, try every way to split a name",
            remedy="Write it with fewer of them.",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _ring(_: int, __: FrameType | None) -> None:
    raise _TooSlowError
