"""How much memory a graph takes, as far as the machine tells."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.runtime.nvml import GpuMeter
from campo_onnx.runtime.providers import Machine

_MIB = 1 << 20
_STATUS = Path("/proc/self/status")
_ANONYMOUS = "RssAnon:"  # resident memory that no file backs: without the code of libraries
_LEAST_CPU_BYTES = 32 * _MIB  # below this the growth depends on what the heap had to spare


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGauge:
    """Reads how much memory this process holds where the graphs run.

    Parameters
    ----------
    read
        Bytes held now; None if nothing tells.
    least_bytes
        Growth below this tells nothing.
    source
        What is read, or why nothing is.
    """

    read: Callable[[], int | None]
    least_bytes: int
    source: str

    def growth(self, before_bytes: int | None) -> int | None:
        """How much more is held than before; None if unknown or too little to tell.

        ONNX Runtime gives nothing back between steps, so after a step this is its peak.
        """
        now = self.read()
        if now is None or before_bytes is None or now - before_bytes < self.least_bytes:
            return None
        return now - before_bytes


def memory_gauge(machine: Machine, gpu: GpuMeter) -> MemoryGauge:
    """Choose what to read on a machine."""
    if machine.provider == "cuda":
        missing = gpu.problem or ("" if gpu.process_bytes() is not None else "the driver does not tell")
        source = f"not measured: {missing}" if missing else "growth of this process' GPU memory (NVML)"
        return MemoryGauge(read=gpu.process_bytes, least_bytes=0, source=source)
    if _resident_bytes() is None:
        return MemoryGauge(read=_resident_bytes, least_bytes=0, source="not measured: only Linux tells")
    source = f"growth of this process' resident memory, where it is {_LEAST_CPU_BYTES // _MIB} MiB or more"
    return MemoryGauge(read=_resident_bytes, least_bytes=_LEAST_CPU_BYTES, source=source)


def _resident_bytes() -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(_ANONYMOUS))
    kib = next(found, None)
    return None if kib is None else int(kib) * 1024
