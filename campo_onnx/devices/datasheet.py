"""Devices known from public figures alone: nothing has to be plugged in."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from campo_onnx.devices.device import Device, DeviceKind, Efficiency
from campo_onnx.errors import UsageError

TERA = 1e12
GIGA = 1e9
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A figure that no data sheet states.

    Parameters
    ----------
    name
        What it is.
    value
        The figure: microseconds for a name that ends in ``_us``, else a share of the peak.
    reason
        Why it was taken.
    """

    name: str
    value: float
    reason: str


@cache
def _tables() -> Mapping[str, Any]:
    text = files("campo_onnx.devices").joinpath("data", "datasheets.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def assumptions(name: str) -> tuple[Assumption, ...]:
    """What is assumed about a device, beside its public figures.

    Raises
    ------
    UsageError
        If there is no device of that name.
    """
    rows = _tables()["assumptions"][_tables()["device"][device(name).name]["assumptions"]]
    return tuple(
        Assumption(name=key, value=float(row["value"]), reason=row["reason"]) for key, row in rows.items()
    )


@cache
def devices() -> Mapping[str, Device]:
    """All devices of ``data/datasheets.toml`` by name, in the file's order.

    Examples
    --------
    >>> devices()["v100"].memory_bandwidth_bytes_per_s
    900000000000.0
    """
    tables = _tables()
    return MappingProxyType(
        {
            name: _device(name, row, tables["assumptions"][row["assumptions"]])
            for name, row in tables["device"].items()
        }
    )


def device(name: str) -> Device:
    """Find a device by name.

    Raises
    ------
    UsageError
        If there is none of that name; the message lists those there are.
    """
    known = devices()
    if name in known:
        return known[name]
    near = get_close_matches(name.lower(), known, n=1)
    raise UsageError(
        f"there is no device {name!r}",
        why=f"figures are known for {', '.join(known)}",
        remedy=f"Did you mean {near[0]!r}?" if near else "Choose one of them.",
    )


def _device(name: str, row: Mapping[str, Any], assumptions: Mapping[str, Any]) -> Device:
    assumed = {key: float(entry["value"]) for key, entry in assumptions.items()}

    def flops_per_s(key: str) -> float | None:
        return float(row[key]) * TERA if key in row else None

    capability = row.get("compute_capability")
    tf32 = flops_per_s("tf32_tflops")
    return Device(
        name=name,
        title=row["title"],
        kind=DeviceKind.DATASHEET,
        provider=row["provider"],
        compute_capability=(capability[0], capability[1]) if capability else None,
        sm_count=row["sm_count"],
        l2_bytes=int(row["l2_mib"] * MIB),
        memory_bandwidth_bytes_per_s=float(row["memory_bandwidth_gb_per_s"]) * GIGA,
        fp32_flops_per_s=float(row["fp32_tflops"]) * TERA,
        fp16_flops_per_s=flops_per_s("fp16_tflops"),
        tf32_flops_per_s=tf32,
        fp16_tensor_flops_per_s=flops_per_s("fp16_tensor_tflops"),
        bf16_tensor_flops_per_s=flops_per_s("bf16_tensor_tflops"),
        tf32_default=tf32 is not None,  # use_tf32 of ONNX Runtime's CUDA provider is on by default
        launch_us=assumed["launch_us"],
        host_us=assumed["host_us"],
        efficiency=Efficiency(
            bandwidth=assumed["bandwidth"],
            cuda_cores=assumed["cuda_cores"],
            tensor_cores=assumed["tensor_cores"],
            unaligned=assumed["unaligned"],
        ),
        source=row["source"],
    )
