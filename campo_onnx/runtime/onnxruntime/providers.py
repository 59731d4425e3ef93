"""Which execution providers work here, and what identifies the machine they run on.

Timings belong to a machine and its software: :class:`Machine` is what they are filed under.
"""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime.gpu import Gpu, visible_gpu
from campo_onnx.runtime.onnxruntime.cuda_libraries import load_cuda_libraries
from campo_onnx.runtime.onnxruntime.installed import onnxruntime, runtime_problem, two_wheels

ORT_NAME = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""What ONNX Runtime calls each provider."""

_AMPERE = (8, 0)  # compute capability from which FP32 products run as TF32 by default
_UNKNOWN_GPU = Gpu(uuid="", name="an NVIDIA GPU", driver="unknown", compute_capability=(0, 0))
_CPU_WHEEL = "the installed ONNX Runtime was built for CPUs only"
_REMEDY = (
    "Install onnxruntime-gpu and CUDA's and cuDNN's libraries (pip's or PyTorch's), or choose --device cpu."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A provider with everything that changes how long a node takes on it.

    Parameters
    ----------
    provider
        ``"cuda"`` or ``"cpu"``.
    device
        What the driver or the operating system calls it.
    driver, cuda
        Versions of driver and CUDA; ``""`` on a CPU.
    ort
        Version of ONNX Runtime.
    tf32
        Whether FP32 products run as TF32.
    threads
        Threads of one node on a CPU; 0 on a GPU.
    """

    provider: str
    device: str
    driver: str
    cuda: str
    ort: str
    tf32: bool
    threads: int

    def is_same_device(self, other: "Machine") -> bool:
        """Whether timings of both describe the same device, whatever the software."""
        return (self.provider, self.device) == (other.provider, other.device)


def choose_provider(wanted: str) -> str:
    """Turn ``auto``, ``cpu`` or ``cuda`` into a provider that works here.

    Raises
    ------
    UsageError
        If there is no such choice.
    DeviceUnavailableError
        If CUDA is asked for and cannot be used; the message says why.
    """
    if wanted == "auto":
        return "cpu" if cuda_problem() else "cuda"
    if wanted not in ORT_NAME:
        raise UsageError(f"unknown provider {wanted!r}", remedy="Choose auto, cpu or cuda.")
    if wanted == "cuda" and (why := cuda_problem()):
        raise DeviceUnavailableError("the CUDA provider cannot be used", why=why, remedy=_REMEDY)
    return wanted


def machine(provider: str, threads: int = 0) -> Machine:
    """Identify this machine.

    Parameters
    ----------
    provider
        A provider that :func:`choose_provider` returned.
    threads
        Threads per node on a CPU; 0 takes all cores that this process may use.
    """
    if provider == "cpu":
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
        cuda=_cuda_version(),
        ort=onnxruntime().__version__,
        tf32=gpu.compute_capability >= _AMPERE and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0",
        threads=0,
    )


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Name of the processor as the operating system tells it."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "a CPU"


@cache
def cuda_problem() -> str:
    """Why the CUDA provider cannot be used; ``""`` when it can.

    Libraries that pip packages or PyTorch brought along are loaded first. ONNX Runtime falls back
    to the CPU without an error when something is missing, so a session is opened and run to find out.
    """
    if problem := runtime_problem():
        return problem
    ort = onnxruntime()
    if ORT_NAME["cuda"] not in ort.get_available_providers():
        return _CPU_WHEEL + (f"; {told}" if (told := two_wheels()) else "")
    if problem := visible_gpu().problem:
        return problem
    missing = load_cuda_libraries()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_probe(), options, providers=[ORT_NAME["cuda"]])
        session.disable_fallback()  # a run that fails would be repeated on the CPU
    except Exception as error:  # whatever the driver and its libraries raise: all of it means "no"
        return str(error).strip()
    if ORT_NAME["cuda"] not in session.get_providers():
        return "its libraries do not load" + (f" (missing: {missing})" if missing else "")
    try:
        # cuDNN is loaded by the first convolution that runs, hours into a training otherwise.
        session.run(None, {"x": np.ones((1, 1, 4, 4), np.float32)})
    except Exception as error:  # as above
        return str(error).strip()
    return ""


def _probe() -> bytes:
    """A graph that needs CUDA's own libraries, cuBLAS and cuDNN."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("MatMul", ["c", "c"], ["y"], name="matmul"),
    ]
    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    graph = helper.make_graph(nodes, "probe", [x], [y], [weight])
    opset = [helper.make_opsetid("", 20)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def _cuda_version() -> str:
    return str(getattr(onnxruntime(), "cuda_version", "") or "unknown")
