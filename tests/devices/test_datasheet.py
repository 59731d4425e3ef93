"""The shipped datasheets."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import campo_onnx.devices.datasheet as datasheet
from campo_onnx.devices.datasheet import device, devices
from campo_onnx.devices.device import DeviceKind
from campo_onnx.errors import UsageError


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return tomllib.loads(Path(str(files("campo_onnx.devices"))).joinpath("data/datasheets.toml").read_text())


def test_the_devices_there_are() -> None:
    assert list(devices()) == ["v100", "rtx2080ti", "t4", "a100", "h100", "h200", "l4", "rtx4090", "cpu"]
    assert all(known.kind is DeviceKind.DATASHEET for known in devices().values())
    assert all(name == known.name for name, known in devices().items())


def test_figures_arrive_in_si_units() -> None:
    v100 = device("v100")
    assert v100.fp16_tensor_flops_per_s == 125e12
    assert v100.fp32_flops_per_s == 15.7e12
    assert v100.memory_bandwidth_bytes_per_s == 900e9
    assert v100.l2_bytes == 6 * 2**20
    assert v100.compute_capability == (7, 0)


def test_tf32_is_the_default_where_it_exists() -> None:
    assert [name for name, known in devices().items() if known.tf32_default] == [
        "a100",
        "h100",
        "h200",
        "l4",
        "rtx4090",
    ]


def test_dense_figures_are_ordered() -> None:
    # A sparse figure among dense ones would break a ratio: FP16 tensor peak = 2 x TF32.
    for known in devices().values():
        if known.tf32_flops_per_s is not None:
            assert known.fp16_tensor_flops_per_s == pytest.approx(2 * known.tf32_flops_per_s, rel=0.02)
            assert known.bf16_tensor_flops_per_s == known.fp16_tensor_flops_per_s


def test_every_figure_has_a_source_and_every_assumption_a_reason(tables: dict[str, Any]) -> None:
    assert all(row["source"] for row in tables["device"].values())
    reasons = [v["reason"] for table in tables["assumptions"].values() for v in table.values()]
    assert all(reasons)
    assert {row["assumptions"] for row in tables["device"].values()} == set(tables["assumptions"])


def test_no_figure_goes_unread(tables: dict[str, Any]) -> None:
    source = Path(datasheet.__file__).read_text()
    keys = {key for row in tables["device"].values() for key in row}
    assert [key for key in sorted(keys) if f'"{key}"' not in source] == []


def test_unknown_device_lists_the_known_and_guesses() -> None:
    with pytest.raises(UsageError, match="no device 'V1O0'") as caught:
        device("V1O0")
    assert "rtx2080ti" in str(caught.value)
    assert "Did you mean 'v100'?" in str(caught.value)
    with pytest.raises(UsageError, match=r"Choose one of them\."):
        device("quantum")
