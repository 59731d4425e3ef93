"""A graph's failure, told so that the user knows what to do."""

import re
from dataclasses import dataclass

from campo_onnx.errors import CampoError, DeviceUnavailableError, ModelError, is_out_of_memory, says_no_memory

_DEVICE_LOST = re.compile(
    r"unspecified launch failure|illegal memory access|device-side assert|GPU is lost|device lost"
    r"|no CUDA-capable device|devices? unavailable|busy or unavailable|driver shutting down"
    r"|uncorrectable ECC|CUDA failure (4|46|100|214|700|719|999)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a graph failed.

    Holds no exception: its traceback would keep the session, and the session its memory.
    """

    text: str
    exit_code: int  # what the command line exits with when nothing else can be shown
    is_memory: bool = False


def failure_of(error: Exception) -> Failure:
    """Tell what an error of ONNX Runtime means."""
    text = str(error).strip() or type(error).__name__
    is_memory = is_out_of_memory(error) or says_no_memory(text)
    if is_memory:
        error = DeviceUnavailableError(
            "the device is out of memory",
            why=_first_line(text),
            remedy="Take a smaller batch (--dim batch=...), time fewer graphs at once, or free the device.",
        )
    elif _DEVICE_LOST.search(text):
        error = DeviceUnavailableError(
            "the device failed",
            why=_first_line(text),
            remedy="See what nvidia-smi says, and start again: after such an error a process cannot "
            "use the device any more.",
        )
    code = error.exit_code if isinstance(error, CampoError) else ModelError.exit_code
    return Failure(text=str(error).strip() or text, exit_code=code, is_memory=is_memory)


def _first_line(text: str) -> str:
    return text.splitlines()[0].rstrip(".")
