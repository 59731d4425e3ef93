"""Devices known from public figures alone: nothing has to be plugged in."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.codec import DecodeError, from_plain, from_toml
from campo_onnx.errors import ProfileError, UsageError, did_you_mean
from campo_onnx.hardware.device import Device, DeviceKind, Efficiency

TERA = 1e12
GIGA = 1e9
MIB = 2**20

T = TypeVar("T")

_ASSUMPTIONS = "assumptions"
_SUFFIX = ".toml"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assumed:
    """A figure in ``assumptions.toml``."""

    value: float
    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("an assumption needs a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assumptions:
    """One table of ``assumptions.toml``."""

    launch_us: _Assumed
    host_us: _Assumed
    bandwidth: _Assumed
    cuda_cores: _Assumed
    tensor_cores: _Assumed
    unaligned: _Assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataSheet:
    """The file of one device, in the units of its data sheet."""

    title: str
    provider: str
    sm_count: int
    l2_mib: float
    memory_bandwidth_gb_per_s: float
    fp32_tflops: float
    assumptions: str
    source: str
    driver_names: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tensor_tflops: float | None = None
    bf16_tensor_tflops: float | None = None

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("figures need a source")
        if (self.provider == "cuda") != bool(self.driver_names):
            raise ValueError("a CUDA device has driver_names, and no other device has any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All devices of a folder.

    Parameters
    ----------
    devices
        By name: GPUs by compute capability, then the rest.
    assumptions
        By name of the device.
    by_driver_name
        Devices by what the driver calls them, see :func:`driver_key`.
    """

    devices: Mapping[str, Device]
    assumptions: Mapping[str, tuple[Assumption, ...]]
    by_driver_name: Mapping[str, Device]


def read_catalogue(folder: Traversable) -> Catalogue:
    """Read a folder with a file for each device, and one of assumptions.

    Raises
    ------
    ProfileError
        If a file is damaged, or two devices share a name that the driver gives.
    """
    tables = _read(folder.joinpath(_ASSUMPTIONS + _SUFFIX), dict[str, _Assumptions])
    sheets = {
        file.name.removesuffix(_SUFFIX): _read(file, _DataSheet)
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX) and file.name != _ASSUMPTIONS + _SUFFIX
    }
    order = sorted(sheets, key=lambda name: (sheets[name].compute_capability or (1000, 0), name))
    devices: dict[str, Device] = {}
    assumed: dict[str, tuple[Assumption, ...]] = {}
    by_driver_name: dict[str, Device] = {}
    for name in order:
        sheet = sheets[name]
        if sheet.assumptions not in tables:
            raise ProfileError(
                f"device {name!r} uses assumptions {sheet.assumptions!r}, which do not exist",
                remedy=f"Choose among {', '.join(tables)}.",
            )
        table = tables[sheet.assumptions]
        devices[name] = _device(name, sheet, table)
        assumed[name] = tuple(
            Assumption(name=field.name, value=entry.value, reason=entry.reason)
            for field in fields(table)
            for entry in (getattr(table, field.name),)
        )
        for title in sheet.driver_names:
            key = driver_key(title)
            if key in by_driver_name:
                raise ProfileError(
                    f"devices {by_driver_name[key].name!r} and {name!r} both claim the GPU {title!r}",
                    remedy="Leave the name to one of them.",
                )
            by_driver_name[key] = devices[name]
    return Catalogue(
        devices=MappingProxyType(devices),
        assumptions=MappingProxyType(assumed),
        by_driver_name=MappingProxyType(by_driver_name),
    )


def driver_key(title: str) -> str:
    """What is compared of the name that a driver gives a GPU: all but case, and "NVIDIA" in front.

    Drivers put the vendor's name there since 2020 or so; everything else tells products apart.

    Examples
    --------
    >>> driver_key("NVIDIA H100 80GB HBM3") == driver_key("H100 80GB HBM3")
    True
    """
    return " ".join(title.lower().split()).removeprefix("nvidia ")


@cache
def _catalogue() -> Catalogue:
    return read_catalogue(files("campo_onnx.hardware").joinpath("data"))


def devices() -> Mapping[str, Device]:
    """All devices that come with the program, by name.

    Examples
    --------
    >>> devices()["v100"].memory_bandwidth_bytes_per_s
    900000000000.0
    """
    return _catalogue().devices


def assumptions(name: str) -> tuple[Assumption, ...]:
    """What is assumed about a device, beside its public figures.

    Raises
    ------
    UsageError
        If there is no device of that name.
    """
    return _catalogue().assumptions[device(name).name]


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
    raise UsageError(f"unknown device {name!r}", remedy=did_you_mean(name, known))


def matching(gpu: str) -> Device | None:
    """Find the device that a driver calls `gpu`; None for any other GPU, however close its name.

    Another memory, form or chip has other figures: timings and calibrations filed under a name must
    not mix them.

    Examples
    --------
    >>> matching("Tesla V100-SXM2-16GB").name
    'v100'
    >>> matching("NVIDIA L40S") is None  # which is no L4
    True
    """
    return _catalogue().by_driver_name.get(driver_key(gpu))


def closest(gpu: str) -> tuple[str, ...]:
    """Names of the devices whose driver names are closest to a GPU's; none if nothing is close.

    Examples
    --------
    >>> closest("NVIDIA A100-PCIE-40GB")
    ('a100',)
    """
    known = _catalogue().by_driver_name
    near = get_close_matches(driver_key(gpu), known, n=3)
    return tuple(dict.fromkeys(known[key].name for key in near))


def _read(file: Traversable, kind: type[T]) -> T:
    try:
        return from_plain(from_toml(file.read_bytes()), kind)
    except DecodeError as error:
        raise ProfileError(
            f"the device file {file} cannot be read", why=str(error), remedy="Correct it."
        ) from None


def _device(name: str, sheet: _DataSheet, assumed: _Assumptions) -> Device:
    def flops_per_s(tflops: float | None) -> float | None:
        return None if tflops is None else tflops * TERA

    return Device(
        name=name,
        title=sheet.title,
        kind=DeviceKind.DATASHEET,
        provider=sheet.provider,
        compute_capability=sheet.compute_capability,
        sm_count=sheet.sm_count,
        l2_bytes=int(sheet.l2_mib * MIB),
        memory_bandwidth_bytes_per_s=sheet.memory_bandwidth_gb_per_s * GIGA,
        fp32_flops_per_s=sheet.fp32_tflops * TERA,
        fp16_flops_per_s=flops_per_s(sheet.fp16_tflops),
        bf16_flops_per_s=flops_per_s(sheet.bf16_tflops),
        tf32_flops_per_s=flops_per_s(sheet.tf32_tflops),
        fp16_tensor_flops_per_s=flops_per_s(sheet.fp16_tensor_tflops),
        bf16_tensor_flops_per_s=flops_per_s(sheet.bf16_tensor_tflops),
        tf32_default=sheet.tf32_tflops is not None,  # use_tf32 of ONNX Runtime's CUDA provider is on
        launch_us=assumed.launch_us.value,
        host_us=assumed.host_us.value,
        efficiency=Efficiency(
            bandwidth=assumed.bandwidth.value,
            cuda_cores=assumed.cuda_cores.value,
            tensor_cores=assumed.tensor_cores.value,
            unaligned=assumed.unaligned.value,
        ),
        source=sheet.source,
    )
