"""The files of devices, and which GPU each of them describes."""

import shutil
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from campo_onnx.errors import DeviceUnavailableError, ProfileError, UsageError
from campo_onnx.hardware.datasheet import closest, device, devices, matching, read_catalogue
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.targets.detect import target_of
from campo_onnx.targets.target import Target

DATA = Path(str(files("campo_onnx.hardware").joinpath("data")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DATA, tmp_path / "data")
    return tmp_path / "data"


def test_the_devices_there_are() -> None:
    gpus = ["v100", "rtx2080ti", "t4", "a100", "l4", "rtx4090", "h100", "h200", "arc_a770", "arc_b580"]
    cpus = [
        "cpu",
        "cpu_amx",
        "cpu_bf16",
        "granite_rapids",
        "neoverse_v1",
        "neoverse_v2",
        "sapphire_rapids",
        "zen4",
        "zen5",
    ]
    assert list(devices()) == [*gpus, *cpus]
    assert all(name == figures.name for name, figures in devices().items())


def test_figures_arrive_in_si_units() -> None:
    v100 = device("v100")
    assert v100.fp16_tensor_flops_per_s == 125e12
    assert v100.fp32_flops_per_s == 15.7e12
    assert v100.memory_bandwidth_bytes_per_s == 900e9
    assert v100.l2_bytes == 6 * 2**20
    assert v100.compute_capability == (7, 0)
    assert device("h200").l2_bytes == 60 * 2**20


def test_tf32_is_the_default_where_it_exists() -> None:
    assert [
        name for name, figures in devices().items() if Target.of(figures).tensor_flops_per_s(Precision.FP32)
    ] == [
        "a100",
        "l4",
        "rtx4090",
        "h100",
        "h200",
    ]


def test_dense_figures_are_ordered() -> None:
    # A sparse figure among dense ones would break a ratio: FP16 tensor peak = 2 x TF32.
    for figures in devices().values():
        if figures.tf32_flops_per_s is not None:
            assert figures.fp16_tensor_flops_per_s == pytest.approx(2 * figures.tf32_flops_per_s, rel=0.02)
            assert figures.bf16_tensor_flops_per_s == figures.fp16_tensor_flops_per_s


# What drivers call GPUs (the driver's list of supported products), and the device each one is.
REAL_NAMES = {
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla V100-SXM2-32GB": "v100",
    "Tesla V100-SXM3-32GB": None,  # clocked higher
    "Tesla V100-PCIE-16GB": None,  # clocked lower
    "Tesla V100S-PCIE-32GB": None,
    "Tesla V100-FHHL-16GB": None,
    "Tesla T4": "t4",
    "NVIDIA T4G": None,
    "NVIDIA T400": None,
    "NVIDIA T400 4GB": None,
    "NVIDIA T1000": None,
    "GeForce RTX 2080 Ti": "rtx2080ti",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti",
    "NVIDIA GeForce RTX 2080": None,
    "NVIDIA GeForce RTX 2080 SUPER": None,
    "NVIDIA A10": None,
    "NVIDIA A10G": None,
    "NVIDIA A100-SXM4-40GB": "a100",
    "A100-SXM4-40GB": "a100",
    "NVIDIA A100-SXM4-80GB": None,  # 2039 GB/s instead of 1555
    "NVIDIA A100-PCIE-40GB": None,
    "NVIDIA A100 80GB PCIe": None,
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": None,
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": None,
    "NVIDIA H100 NVL": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA H800": None,
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": None,
    "NVIDIA L4": "l4",
    "NVIDIA L40": None,
    "NVIDIA L40S": None,
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA RTX 4000 Ada Generation": None,
    "Quadro P4000": None,
}


@pytest.mark.parametrize(("gpu", "name"), REAL_NAMES.items())
def test_a_gpu_is_a_device_by_its_exact_name(gpu: str, name: str | None) -> None:
    match = matching(gpu)
    assert (match.name if match is not None else None) == name


def test_every_gpu_has_a_real_name() -> None:
    assert {name for name in REAL_NAMES.values() if name} == {
        name for name, figures in devices().items() if figures.processor == "cuda"
    }


def test_the_closest_are_told_of_a_gpu_without_figures() -> None:
    assert closest("NVIDIA A100-SXM4-80GB")[0] == "a100"
    assert closest("NVIDIA L40S") == ("l4",)
    assert closest("an NVIDIA GPU") == ()
    gpu = "NVIDIA A100-SXM4-80GB"
    here = Machine(provider="cuda", device=gpu, driver="", cuda="", ort="", tf32=True, threads=0)
    with pytest.raises(DeviceUnavailableError, match=r"80GB \(closest: .*a100.*, whose figures differ\)"):
        target_of(here)


def test_adding_a_device_is_adding_its_file(folder: Path) -> None:
    text = (
        (folder / "l4.toml").read_text().replace('"L4"', '"L40S"').replace("sm_count = 58", "sm_count = 142")
    )
    (folder / "l40s.toml").write_text(text)
    catalogue = read_catalogue(folder)
    assert catalogue.devices["l40s"].sm_count == 142
    assert catalogue.by_driver_name["l40s"].name == "l40s"
    assert catalogue.assumptions["l40s"] == catalogue.assumptions["l4"]
    assert set(catalogue.devices) == {*devices(), "l40s"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"L4"', '"L4", "NVIDIA H200"', r"devices 'l4' and 'h200' both claim the GPU 'H200'"),
        ("sm_count = 58", 'sm_count = "58"', "sm_count: expected `int`, got `str`"),
        ("sm_count = 58", "sm_cuont = 58", "sm_cuont: unknown field, did you mean 'sm_count'"),
        ("sm_count = 58", "sm_count = 0", "device 'l4' is inconsistent: sm_count is 0"),
        ('"ampere_and_later"', '"ampere"', "uses assumptions 'ampere', which do not exist"),
        ('driver_names = ["L4"]', "", "a CUDA device has driver_names"),
        ("source = ", 'source = "" #', "figures need a source"),
        ("sm_count = 58", "sm_count", "it is not TOML"),
    ],
)
def test_a_device_file_that_is_wrong(folder: Path, old: str, new: str, message: str) -> None:
    text = (folder / "l4.toml").read_text()
    assert old in text
    (folder / "l4.toml").write_text(text.replace(old, new))
    with pytest.raises(ProfileError, match=message):
        read_catalogue(folder)


def test_an_assumption_needs_a_reason(folder: Path) -> None:
    path = folder / "assumptions.toml"
    path.write_text(path.read_text().replace('reason = "unused: there are none"', 'reason = ""'))
    with pytest.raises(ProfileError, match="an assumption needs a reason"):
        read_catalogue(folder)


def test_every_assumption_is_used() -> None:
    tables = {path.stem: tomllib.loads(path.read_text()) for path in DATA.glob("*.toml")}
    assert set(tables.pop("assumptions")) == {table["assumptions"] for table in tables.values()}


def test_unknown_device_lists_the_known_and_guesses() -> None:
    with pytest.raises(UsageError, match="unknown device 'V1O0'") as caught:
        device("V1O0")
    assert "rtx2080ti" in str(caught.value)
    assert "Did you mean 'v100'?" in str(caught.value)
    with pytest.raises(UsageError, match=r"unknown device 'quantum'. Known: "):
        device("quantum")
