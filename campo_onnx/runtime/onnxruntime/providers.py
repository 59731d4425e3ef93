"""Execution providers that work here, the libraries of CUDA's, and the identity of the machine."""

import contextlib
import ctypes
import importlib
import io
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from campo_onnx.runtime.gpu import Gpu, visible_gpu
from campo_onnx.runtime.machine import CPU, CUDA, Machine, cores, cpu_name
from campo_onnx.runtime.onnxruntime.installed import onnxruntime, runtime_problem, two_wheels

# In the order in which they need each other; cuDNN is loaded by the first convolution only.
_NAMES = ("cudart", "nvrtc", "cublasLt", "cublas", "curand", "cufft", "cudnn")


def load_cuda_libraries() -> str:
    """Load the libraries of CUDA and cuDNN before ONNX Runtime looks for them, the surest place first.

    Its own search knows the ``nvidia`` packages beside itself and the system's paths. On machines that were
    set up for PyTorch they lie elsewhere: in ``nvidia`` packages of another folder of the Python path, or in
    torch itself.

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


ORT_NAME = {CPU: "CPUExecutionProvider", CUDA: "CUDAExecutionProvider"}
"""ONNX Runtime's name of each provider."""

_AMPERE = (8, 0)  # compute capability from which FP32 products run as TF32 by default
_UNKNOWN_GPU = Gpu(uuid="", name="an NVIDIA GPU", driver="unknown", compute_capability=(0, 0))
_CPU_WHEEL = "the installed ONNX Runtime was built for CPUs only"


def machine(provider: str, threads: int = 0) -> Machine:
    """Identify this machine."""
    if provider == CPU:
        return Machine(
            provider=provider,
            device=cpu_name(),
            driver="",
            cuda="",
            ort=onnxruntime().__version__,
            tf32=False,
            threads=threads or cores(),
        )
    gpu = visible_gpu().gpu or _UNKNOWN_GPU
    return Machine(
        provider=provider,
        device=gpu.name,
        driver=gpu.driver,
        cuda=str(getattr(onnxruntime(), "cuda_version", "") or "unknown"),
        ort=onnxruntime().__version__,
        tf32=gpu.compute_capability >= _AMPERE and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0",
        threads=0,
    )


@cache
def cuda_problem() -> str:
    """Why the CUDA provider cannot be used; ``""`` when it can.

    Libraries that pip packages or PyTorch brought along are loaded first. ONNX Runtime falls back
    to the CPU without an error when something is missing, so a session is opened and run to find out.
    """
    if problem := runtime_problem():
        return problem
    import numpy as np

    ort = onnxruntime()
    if ORT_NAME[CUDA] not in ort.get_available_providers():
        return _CPU_WHEEL + (f"; {told}" if (told := two_wheels()) else "")
    if problem := visible_gpu().problem:
        return problem
    missing = load_cuda_libraries()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_probe(), options, providers=[ORT_NAME[CUDA]])
        session.disable_fallback()  # a run that fails would be repeated on the CPU
    except Exception as error:  # whatever the driver and its libraries raise: all of it means "no"
        return str(error).strip()
    if ORT_NAME[CUDA] not in session.get_providers():
        return "its libraries do not load" + (f" (missing: {missing})" if missing else "")
    try:
        # cuDNN is loaded by the first convolution that runs, hours into a training otherwise.
        session.run(None, {"x": np.ones((1, 1, 4, 4), np.float32)})
    except Exception as error:  # as above
        return str(error).strip()
    return ""


def _probe() -> bytes:
    """A graph that needs CUDA's own libraries, cuBLAS and cuDNN."""
    from onnx.parser import parse_model

    return bytes(parse_model(_PROBE).SerializeToString())


_PROBE = """
    <ir_version: 10, opset_import: ["" : 20]>
    probe (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) <float[1, 1, 1, 1] w = {1}>
    {
        c = Conv (x, w)
        y = MatMul (c, c)
    }
"""
