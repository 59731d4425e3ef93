"""Work that no signal interrupts: a handler may raise, as those of Ctrl-C and timeouts do."""

# What `signal` is made of: that makes an enumeration of every handler, which takes 30 us a step instead of 5.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")
_SIGNALS = tuple(int(number) for number in signal.valid_signals())


class Terminated(SystemExit):
    """SIGTERM as an exception: files that are half-written are removed. By default it ends the process."""


def terminate(number: int, _: FrameType | None) -> NoReturn:
    """Handle SIGTERM."""
    raise Terminated(128 + number)


def uninterrupted(work: Callable[[], _T]) -> _T:
    """Do a piece of work whole: handlers of signals that arrive meanwhile are called after it, in order.

    What they raise is raised then, also where the work fails. Python calls handlers in the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    deferred = _Deferred()
    try:
        deferred.begin()
        return work()
    finally:
        deferred.end()


class _Deferred:
    """The handler of every signal, until the work is done."""

    def __init__(self) -> None:
        self._is_working = True
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_working:
            self._arrived.append((number, frame))
        else:  # `end` was interrupted before it put the handler back
            self._handlers[number](number, frame)

    def begin(self) -> None:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self)

    def end(self) -> None:
        self._is_working = False
        try:
            for number, handler in self._handlers.items():
                if _signal.getsignal(number) is self:
                    _signal.signal(number, handler)
        finally:
            self._call(iter(self._arrived))

    def _call(self, arrived: Iterator[tuple[int, FrameType | None]]) -> None:
        for number, frame in arrived:
            try:
                self._handlers[number](number, frame)
            finally:
                self._call(arrived)
