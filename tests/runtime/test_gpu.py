"""Which GPU CUDA takes first, by what the driver lists and the environment says."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from campo_onnx.runtime import gpu
from campo_onnx.runtime.gpu import Gpu, first_visible, visible_gpu
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import resolve_target

V100, T4, SECOND_T4 = (
    Gpu(uuid=f"GPU-{letter}1", name=name, driver="580.1", compute_capability=capability)
    for letter, name, capability in (
        ("a", "Tesla V100-SXM2-16GB", (7, 0)),
        ("b", "Tesla T4", (7, 5)),
        ("c", "Tesla T4", (7, 5)),
    )
)
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({}, V100),
        ({"CUDA_VISIBLE_DEVICES": "0"}, V100),
        ({"CUDA_VISIBLE_DEVICES": " 1 ,0"}, T4),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b1"}, T4),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c,0"}, SECOND_T4),  # CUDA takes the beginning of a UUID
    ],
    ids=str,
)
def test_the_first_one_is_taken(visible: dict[str, str], expected: Gpu) -> None:
    selection = first_visible((V100, T4, SECOND_T4), BY_BUS | visible)
    assert (selection.gpu, selection.problem) == (expected, "")


@pytest.mark.parametrize(
    ("visible", "problem"),
    [
        ("", "hides every GPU"),
        ("-1", "hides every GPU"),
        ("7", "names GPU 7, and there are 3"),
        ("GPU-x", "names GPU-x, which is no GPU here"),
        ("GPU", "names GPU, which is several GPUs here"),
        ("MIG-5", "names MIG-5, which is no GPU here"),
    ],
)
def test_no_gpu_to_be_told(visible: str, problem: str) -> None:
    selection = first_visible((V100, T4, SECOND_T4), BY_BUS | {"CUDA_VISIBLE_DEVICES": visible})
    assert selection.gpu is None
    assert problem in selection.problem


def test_a_number_among_different_gpus_is_ambiguous() -> None:
    selection = first_visible((V100, T4), {})
    assert selection.gpu is None
    assert "GPUs differ (Tesla T4, Tesla V100-SXM2-16GB)" in selection.problem
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in selection.problem
    assert first_visible((T4, SECOND_T4), {"CUDA_VISIBLE_DEVICES": "1"}).gpu == SECOND_T4
    assert first_visible((V100, T4), {"CUDA_VISIBLE_DEVICES": "GPU-b1"}).gpu == T4


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A driver's program that lists three GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'test "$*" = "--query-gpu=uuid,name,driver_version,compute_cap --format=csv,noheader" || exit 1\n'
        "echo 'GPU-a1, Tesla V100-SXM2-16GB, 580.1, 7.0'\n"
        "echo 'GPU-b1, NVIDIA L40S, 580.1, 8.9'\n"
        "echo 'GPU-c1, NVIDIA H200, 580.1, [N/A]'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    gpu._listed.cache_clear()
    yield program
    gpu._listed.cache_clear()


def test_everybody_asks_the_same(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert smi.is_file()
    for visible, name in (("0", "Tesla V100-SXM2-16GB"), ("GPU-b1", "NVIDIA L40S"), ("2,0", "NVIDIA H200")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        first_gpu = visible_gpu().gpu
        assert first_gpu is not None
        assert first_gpu.name == machine("cuda").device == name
        assert name in resolve_target("auto")[1]
    assert first_gpu.compute_capability == (0, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert resolve_target("auto")[0].name == "v100"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    device, note = resolve_target("auto")
    assert device.name == "h200"
    assert "No figures are known for this machine's NVIDIA L40S (closest: l4, whose figures differ)" in note


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "printf '\\377'"])
def test_a_driver_that_does_not_answer(smi: Path, script: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    assert visible_gpu().gpu is None
    assert "nvidia-smi lists none" in visible_gpu().problem
    assert machine("cuda").device == "an NVIDIA GPU"
