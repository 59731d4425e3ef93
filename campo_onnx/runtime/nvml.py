"""The GPU as NVIDIA's management library (NVML) describes it: energy drawn, memory taken, clocks.

An optional package: without it, and without a GPU, nothing is measured and the reason is kept.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from campo_onnx.runtime.gpu import visible_gpu

_MILLI = 1e-3
_NOT_INSTALLED = "nvidia-ml-py is not installed (pip install 'campo-onnx[gpu]')"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeter:
    """Reads the GPU that CUDA takes first."""

    problem: str = ""
    nvml: Any = None
    handle: Any = None

    def energy_j(self) -> float | None:
        """Joules the whole GPU drew since its driver was loaded; None if it does not count.

        The counter moves every 20 to 100 ms. GPUs before Volta, and slices of a GPU, have none.
        """
        if self.problem:
            return None
        try:
            return float(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) * _MILLI
        except self.nvml.NVMLError:
            return None

    def sm_clock_mhz(self) -> int | None:
        """Clock of the multiprocessors now; None if the driver does not tell."""
        if self.problem:
            return None
        try:
            return int(self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))
        except self.nvml.NVMLError:
            return None

    def process_bytes(self) -> int | None:
        """GPU memory that this process holds; None if the driver does not tell.

        In a container the driver may know the process by another number; if it is the only one on
        the GPU, it is taken for this one.
        """
        if self.problem:
            return None
        try:
            processes = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self.nvml.NVMLError:
            return None
        own = [process for process in processes if process.pid == os.getpid()] or processes
        if len(own) != 1 or own[0].usedGpuMemory is None:
            return None
        return int(own[0].usedGpuMemory)


@contextmanager
def gpu_meter() -> Iterator[GpuMeter]:
    """Open the meter of the GPU that CUDA takes first, as far as it can be opened."""
    try:
        import pynvml
    except ImportError:
        yield GpuMeter(problem=_NOT_INSTALLED)
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield GpuMeter(problem=f"NVML does not answer: {error}")
        return
    try:
        yield _meter(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _meter(nvml: Any) -> GpuMeter:
    visible = visible_gpu()
    if visible.gpu is None:
        return GpuMeter(problem=visible.problem)
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(visible.gpu.uuid)
    except nvml.NVMLError as error:
        return GpuMeter(problem=f"NVML does not know the GPU {visible.gpu.uuid}: {error}")
    return GpuMeter(nvml=nvml, handle=handle)
