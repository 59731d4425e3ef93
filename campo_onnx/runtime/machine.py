"""Identity of the machine and the runtime that graphs run on: timings are filed under it."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.hardware.hardware import PROCESSORS

CPU, CUDA = PROCESSORS[:2]
"""Processors that a machine runs graphs on."""

DEFAULT = "onnxruntime"
"""The runtime that graphs are run by unless told otherwise."""

_TITLES = {DEFAULT: "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A processor and a runtime on it, with everything that changes how long a node takes.

    Versions of `driver` and `cuda` are ``""`` on a CPU.
    """

    provider: str  # ``"cuda"`` or ``"cpu"``
    device: str  # what the driver or the operating system calls it
    driver: str
    cuda: str
    ort: str  # version of the runtime
    tf32: bool
    threads: int  # threads of one node on a CPU; 0 on a GPU
    runtime: str = DEFAULT  # name of the runtime; files that do not tell are of ONNX Runtime

    @property
    def software(self) -> str:
        """Runtime and version, as people write them."""
        return f"{_TITLES.get(self.runtime, self.runtime)} {self.ort}"

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.provider == CUDA

    def is_same_device(self, other: "Machine") -> bool:
        """Whether timings of both describe the same device, whatever the software's versions."""
        return (self.runtime, self.provider, self.device) == (other.runtime, other.provider, other.device)


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


def free_bytes() -> float:
    """Memory that this process may still take, by its control group too; infinite where unknown."""
    free = float("inf")
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                free = float(value.split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(free, max(float(most) - float(used), 0.0))
    except (OSError, ValueError):  # no such group, or "max": without a limit
        return free
