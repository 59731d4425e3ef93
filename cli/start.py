"""The very start of the program, which imports nothing yet: Ctrl-C ends it here without a traceback."""

import os
import signal

_LEAST_BYTES = 320 << 20
"""Address space that loading NumPy takes for certain: with less, OpenBLAS asks for it for ever."""


def run() -> None:
    """Run the program; see :func:`.main.run`."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a shell's background
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    if _may_take_bytes() < _LEAST_BYTES:
        _leave_without_memory()
    try:
        from .main import run as program
    except (ImportError, MemoryError) as error:
        from campo_onnx.errors import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _leave_without_memory()
    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        program()
    finally:
        if heeds:  # everything is written; what is left is Python's own end
            signal.signal(signal.SIGINT, _leave)


def _leave(number: int, _: object) -> None:
    os._exit(128 + number)


def _may_take_bytes() -> float:
    """Return how much address space a limit leaves to this process."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return float("inf")
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    return float("inf") if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def _leave_without_memory() -> None:
    from campo_onnx.errors import OutOfMemoryError

    os.write(2, f"error: {OutOfMemoryError()}\n".encode())
    os._exit(OutOfMemoryError.exit_code)
