"""The very start of the program, which imports nothing yet: Ctrl-C ends it here without a traceback."""

import os
import signal


def run() -> None:
    """Run the program; see :func:`.main.run`."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a shell's background
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    from .main import run as program

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        program()
    finally:
        if heeds:  # everything is written; what is left is Python's own end
            signal.signal(signal.SIGINT, _leave)


def _leave(number: int, _: object) -> None:
    os._exit(128 + number)
