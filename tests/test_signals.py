"""Signals wait for work that is to be done whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest

from campo_onnx.errors import ModelError
from campo_onnx.files import signals
from campo_onnx.files.signals import uninterrupted

INTERRUPT, TIMEOUT = signal.SIGINT, getattr(signal, "SIGALRM", signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    def time_out(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = {number: signal.getsignal(number) for number in (INTERRUPT, TIMEOUT)}
    signal.signal(INTERRUPT, signal.default_int_handler)
    signal.signal(TIMEOUT, time_out)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_work_is_done_before_a_handler_raises() -> None:
    done: list[int] = []

    def work() -> None:
        for piece in range(3):
            signal.raise_signal(INTERRUPT)
            done.append(piece)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(INTERRUPT)


def test_every_handler_is_called_in_order_and_nothing_that_is_raised_is_lost() -> None:
    def work() -> None:
        signal.raise_signal(TIMEOUT)
        signal.raise_signal(INTERRUPT)
        raise ModelError("the work fails")

    with pytest.raises(KeyboardInterrupt) as raised:
        uninterrupted(work)
    assert isinstance(raised.value.__context__, TimeoutError)
    assert isinstance(raised.value.__context__.__context__, ModelError)


def test_results_are_given_and_other_threads_have_no_handlers() -> None:
    results: list[int] = []
    assert uninterrupted(lambda: 7) == 7
    thread = threading.Thread(target=lambda: results.append(uninterrupted(lambda: 8)))
    thread.start()
    thread.join()
    assert results == [8]


def test_work_within_work_is_whole_too() -> None:
    done: list[str] = []

    def inner() -> None:
        signal.raise_signal(INTERRUPT)
        done.append("inner")

    def outer() -> None:
        uninterrupted(inner)
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(outer)
    assert done == ["inner", "outer"]


@pytest.mark.parametrize("failing", [-2, -1, 0, 1])
def test_signals_that_arrive_while_handlers_return_are_not_lost(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore, calls = signal.signal, iter(range(-2, 9))  # two are deferred first, then put back

    class Interrupted:
        getsignal = staticmethod(signal.getsignal)

        @staticmethod
        def signal(number: int, handler: object) -> None:
            if next(calls) == failing:
                signal.raise_signal(INTERRUPT)
            restore(number, handler)  # type: ignore[arg-type]

    monkeypatch.setattr(signals, "_SIGNALS", (INTERRUPT, TIMEOUT))
    monkeypatch.setattr(signals, "_signal", Interrupted)
    with suppress(KeyboardInterrupt):
        uninterrupted(lambda: None)
    for number, error in ((INTERRUPT, KeyboardInterrupt), (TIMEOUT, TimeoutError)):
        with pytest.raises(error):
            signal.raise_signal(number)
