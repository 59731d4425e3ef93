"""The very start of the program, which imports nothing yet: Ctrl-C ends it here without a traceback."""

import os
import signal


def run() -> None:
    """Run the program; see :func:`.main.run`."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a shell's background
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    try:
        from .main import run as program
    except (ImportError, MemoryError) as error:
        from campo_onnx.errors import OutOfMemoryError, is_out_of_memory

        if not is_out_of_memory(error):
            raise
        os.write(2, f"error: {OutOfMemoryError()}\n".encode())
        os._exit(OutOfMemoryError.exit_code)
    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        program()
    finally:
        if heeds:  # everything is written; what is left is Python's own end
            signal.signal(signal.SIGINT, _leave)


def _leave(number: int, _: object) -> None:
    os._exit(128 + number)
