"""Which providers work here, and how a machine is identified."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort
import pytest

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime import gpu
from campo_onnx.runtime.onnxruntime import providers
from campo_onnx.runtime.registry import machine, processor_for

HAS_CUDA = "CUDAExecutionProvider" in ort.get_available_providers()


@pytest.fixture(autouse=True)
def _forget_probes() -> Iterator[None]:
    providers.cuda_problem.cache_clear()
    gpu._listed.cache_clear()
    yield
    providers.cuda_problem.cache_clear()
    gpu._listed.cache_clear()


def test_cpu_is_always_there() -> None:
    assert processor_for("cpu") == "cpu"


@pytest.mark.skipif(HAS_CUDA, reason="this machine may have a CUDA provider")
def test_auto_falls_back_to_the_cpu() -> None:
    assert processor_for("auto") == "cpu"


@pytest.mark.skipif(HAS_CUDA, reason="this machine may have a CUDA provider")
def test_cuda_that_cannot_load_says_why_and_what_to_do() -> None:
    with pytest.raises(
        DeviceUnavailableError, match=r"built for CPUs only\. Install onnxruntime-gpu"
    ) as error:
        processor_for("cuda")
    assert error.value.exit_code == 8


def test_unknown_provider() -> None:
    with pytest.raises(UsageError, match="Choose auto, cpu or cuda"):
        processor_for("tpu")


def test_machine_tells_what_timings_depend_on() -> None:
    here = machine("cpu", threads=3)
    assert here.provider == "cpu"
    assert here.threads == 3
    assert here.ort == ort.__version__
    assert here.device
    assert machine("cpu").threads == len(os.sched_getaffinity(0))


def test_gpu_is_asked_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-1, NVIDIA H200, 580.1, 9.0'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    here = machine("cuda")
    assert (here.device, here.driver, here.tf32, here.threads) == ("NVIDIA H200", "580.1", True, 0)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert not machine("cuda").tf32
