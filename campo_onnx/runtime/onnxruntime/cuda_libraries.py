"""Finding the libraries of CUDA and cuDNN before ONNX Runtime looks for them.

onnxruntime's own search knows the ``nvidia`` packages beside itself and the system's paths. On machines that
were set up for PyTorch the libraries lie elsewhere: in ``nvidia`` packages of another folder of the Python
path, or in torch itself.
"""

import contextlib
import ctypes
import importlib
import io
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from campo_onnx.runtime.onnxruntime.installed import onnxruntime

# In the order in which they need each other; cuDNN is loaded by the first convolution only.
_NAMES = ("cudart", "nvrtc", "cublasLt", "cublas", "curand", "cufft", "cudnn")


def load_cuda_libraries() -> str:
    """Load what can be found, the surest place first.

    Gives what onnxruntime could not find by itself and nothing else had either; ``""`` when it found all.
    """
    missing = _preloaded_by_onnxruntime()
    if not missing:
        return ""
    for library in _packaged_libraries():
        with contextlib.suppress(OSError):  # another CUDA's library, or one that needs a later one
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    missing = _preloaded_by_onnxruntime()
    if missing and find_spec("torch") is not None:
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("torch")
        missing = _preloaded_by_onnxruntime()
    return missing


def _preloaded_by_onnxruntime() -> str:
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):  # it prints what it cannot find
        onnxruntime().preload_dlls()
    lines = (line for line in heard.getvalue().splitlines() if line.startswith("Failed to load"))
    return "; ".join(line.removeprefix("Failed to load ").partition(":")[0] for line in lines)


def _packaged_libraries() -> Iterator[Path]:
    """Libraries in ``nvidia`` packages and in torch, wherever they are on the Python path."""
    folders = [
        folder
        for entry in dict.fromkeys(sys.path)
        for pattern in ("nvidia/*/lib", "torch/lib")
        for folder in sorted(Path(entry or ".").glob(pattern))
    ]
    for name in _NAMES:
        for folder in folders:
            yield from sorted(folder.glob(f"lib{name}.so.*"))
