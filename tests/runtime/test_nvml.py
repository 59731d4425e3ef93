"""Readings of NVML, on a stand-in for its library."""

import os
import sys
from types import SimpleNamespace

import pytest

from campo_onnx.runtime import nvml as nvml_room
from campo_onnx.runtime.gpu import Gpu, Visible
from campo_onnx.runtime.nvml import gpu_meter


class NVMLError(Exception):
    pass


class Nvml:
    NVMLError = NVMLError

    def __init__(self, *, pid: int = 0, used: int | None = 1 << 30, broken: str = "") -> None:
        self.processes = [SimpleNamespace(pid=pid or os.getpid(), usedGpuMemory=used)]
        self.broken = broken
        self.open = 0
        self.asked: list[object] = []

    def _may_break(self, what: str) -> None:
        if what == self.broken:
            raise NVMLError(what)

    def nvmlInit(self) -> None:  # noqa: N802
        self._may_break("init")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._may_break("handle")
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert (handle, self.open) == ("handle", 1)
        self._may_break("energy")
        return 12_345

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        self._may_break("processes")
        return self.processes


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    here = Gpu(uuid="GPU-8f1", name="NVIDIA H200", driver="580.1", compute_capability=(9, 0))
    monkeypatch.setattr(nvml_room, "visible_gpu", lambda: Visible(gpu=here))

    def install(nvml: object) -> object:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_reads_joules_and_bytes(install) -> None:
    nvml = install(Nvml())
    with gpu_meter() as gpu:
        assert gpu.problem == ""
        assert gpu.energy_j() == pytest.approx(12.345)
        assert gpu.process_bytes() == 1 << 30
    assert (nvml.open, nvml.asked) == (0, ["GPU-8f1"])


def test_without_a_gpu_that_cuda_takes(install, monkeypatch) -> None:
    monkeypatch.setattr(nvml_room, "visible_gpu", lambda: Visible(gpu=None, problem="all are hidden"))
    nvml = install(Nvml())
    with gpu_meter() as gpu:
        assert (gpu.problem, nvml.asked) == ("all are hidden", [])


def test_the_library_closes_after_an_error(install) -> None:
    nvml = install(Nvml())
    with pytest.raises(ZeroDivisionError), gpu_meter():
        raise ZeroDivisionError
    assert nvml.open == 0


def test_without_the_package(install) -> None:
    install(None)
    with gpu_meter() as gpu:
        assert "campo-onnx[gpu]" in gpu.problem
        assert gpu.energy_j() is None
        assert gpu.process_bytes() is None


@pytest.mark.parametrize("broken", ["init", "handle"])
def test_without_a_driver_or_gpu(install, broken) -> None:
    nvml = install(Nvml(broken=broken))
    with gpu_meter() as gpu:
        assert broken in gpu.problem
        assert gpu.energy_j() is None
    assert nvml.open == 0


def test_a_gpu_that_does_not_count(install) -> None:
    install(Nvml(broken="energy"))
    with gpu_meter() as gpu:
        assert gpu.energy_j() is None
        assert gpu.process_bytes() is not None


def test_memory_the_driver_does_not_tell(install) -> None:
    for nvml in (Nvml(used=None), Nvml(broken="processes")):
        install(nvml)
        with gpu_meter() as gpu:
            assert gpu.process_bytes() is None


def test_the_only_process_is_this_one(install) -> None:
    nvml = install(Nvml(pid=-1))
    with gpu_meter() as gpu:
        assert gpu.process_bytes() == 1 << 30
        nvml.processes *= 2
        assert gpu.process_bytes() is None
