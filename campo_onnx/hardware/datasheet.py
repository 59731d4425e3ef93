"""Devices known from public figures alone: nothing has to be plugged in."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.errors import ProfileError, UsageError, did_you_mean
from campo_onnx.files.codec import DecodeError, from_plain, from_toml
from campo_onnx.hardware.hardware import CPU, CUDA, Efficiency, Hardware
from campo_onnx.hardware.processor import BF16_UNITS, Processor, ProcessorKind

TERA = 1e12
GIGA = 1e9
MIB = 2**20

ANY_CPU = "cpu"
"""The device that stands for any CPU."""

ROUGH_CPUS = (ANY_CPU, "cpu_bf16", "cpu_amx")
"""Devices that stand for many CPUs."""

T = TypeVar("T")

_ASSUMPTIONS = "assumptions"
_SUFFIX = ".toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A figure that no data sheet states."""

    # the figure: microseconds under a name that ends in `_us`, GB/s under `_gb_per_s`, else a share of the
    # peak
    value: float
    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("an assumption needs a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assumptions:
    """One table of ``assumptions.toml``."""

    bandwidth: Assumption
    cuda_cores: Assumption
    tensor_cores: Assumption
    unaligned: Assumption
    core_gb_per_s: Assumption | None = None

    @property
    def by_name(self) -> Mapping[str, Assumption]:
        figures = ((field.name, getattr(self, field.name)) for field in fields(self))
        return MappingProxyType({name: figure for name, figure in figures if figure is not None})


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
    processors: tuple[ProcessorKind, ...] = ()
    bf16_feature: str = ""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("figures need a source")
        if self.processors and not self.bf16_feature:
            raise ValueError("a CPU with BF16 units needs bf16_feature, the instruction set that has them")
        if (self.provider == CUDA) != bool(self.driver_names):
            raise ValueError("a CUDA device has driver_names, and no other device has any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All devices of a folder."""

    devices: Mapping[str, Hardware]  # by name: CUDA devices by compute capability, then other GPUs, then CPUs
    assumptions: Mapping[str, Mapping[str, Assumption]]
    by_driver_name: Mapping[str, Hardware]  # devices by what the driver calls them, see `driver_key`
    sheets: Mapping[str, _DataSheet]


def read_catalogue(folder: Traversable) -> Catalogue:
    """Read a folder with a file for each device, and one of assumptions.

    Raises ProfileError if a file is damaged, or two devices share a name that the driver gives.
    """
    tables = _read(folder.joinpath(_ASSUMPTIONS + _SUFFIX), dict[str, _Assumptions])
    sheets = {
        file.name.removesuffix(_SUFFIX): _read(file, _DataSheet)
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX) and file.name != _ASSUMPTIONS + _SUFFIX
    }
    order = sorted(
        sheets,
        key=lambda name: (sheets[name].provider == CPU, sheets[name].compute_capability or (1000, 0), name),
    )
    devices: dict[str, Hardware] = {}
    assumed: dict[str, Mapping[str, Assumption]] = {}
    by_driver_name: dict[str, Hardware] = {}
    for name in order:
        sheet = sheets[name]
        if sheet.assumptions not in tables:
            raise ProfileError(
                f"device {name!r} uses assumptions {sheet.assumptions!r}, which do not exist",
                remedy=f"Choose among {', '.join(tables)}.",
            )
        table = tables[sheet.assumptions]
        devices[name] = _hardware(name, sheet, table)
        assumed[name] = table.by_name
        if sheet.processors and table.core_gb_per_s is None:
            raise ProfileError(
                f"device {name!r} names processors, but assumptions {sheet.assumptions!r} have no "
                "core_gb_per_s",
                remedy="Add what one core draws from memory.",
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
        sheets=MappingProxyType(sheets),
    )


def driver_key(title: str) -> str:
    """The part of a GPU's driver name that is compared: all but case, and "NVIDIA" in front.

    Drivers put the vendor's name there since 2020 or so; everything else tells products apart.

    >>> driver_key("NVIDIA H100 80GB HBM3") == driver_key("H100 80GB HBM3")
    True
    """
    return " ".join(title.lower().split()).removeprefix("nvidia ")


@cache
def _catalogue() -> Catalogue:
    return read_catalogue(files("campo_onnx.hardware").joinpath("data"))


def devices() -> Mapping[str, Hardware]:
    """All devices that come with the program, by name.

    >>> devices()["v100"].memory_bandwidth_bytes_per_s
    900000000000.0
    """
    return _catalogue().devices


def assumptions(name: str) -> Mapping[str, Assumption]:
    """Assumptions about a device, beside its public figures."""
    return _catalogue().assumptions[device(name).name]


def device(name: str) -> Hardware:
    """Find a device by name."""
    catalogue = devices()
    if name in catalogue:
        return catalogue[name]
    raise UsageError(f"unknown device {name!r}", remedy=did_you_mean(name, catalogue))


def matching(gpu: str) -> Hardware | None:
    """Find the device that a driver calls `gpu`; None for any other GPU, however close its name.

    Another memory, form or chip has other figures: timings and calibrations filed under a name must
    not mix them.

    >>> matching("Tesla V100-SXM2-16GB").name
    'v100'
    >>> matching("NVIDIA L40S") is None  # which is no L4
    True
    """
    return _catalogue().by_driver_name.get(driver_key(gpu))


def matching_processor(processor: Processor, cores: int) -> Hardware | None:
    """Find the figures of a CPU, for as many cores as a machine has; None for any other CPU.

    >>> genoa = Processor(vendor="AuthenticAMD", family=25, model=17, features=frozenset({"avx512_bf16"}))
    >>> device = matching_processor(genoa, cores=8)
    >>> device.name, device.sm_count
    ('zen4', 8)
    """
    for name, sheet in _catalogue().sheets.items():
        if any(kind.includes(processor) for kind in sheet.processors):
            return _some_cores(name, cores, has_bf16=sheet.bf16_feature in processor.features)
    return None


def rough_processor(features: Set[str], cores: int) -> Hardware:
    """Find the device that stands for CPUs with some instruction sets, with the figures of as many cores.

    >>> rough_processor({"avx512_bf16", "amx_bf16"}, cores=2).name
    'cpu_amx'
    """
    if "amx_bf16" in features:
        return _some_cores("cpu_amx", cores, has_bf16=True)
    if features & BF16_UNITS:
        return _some_cores("cpu_bf16", cores, has_bf16=True)
    return device(ANY_CPU)


def _some_cores(name: str, cores: int, *, has_bf16: bool) -> Hardware:
    """Scale a socket's figures to the cores of a machine.

    Peaks grow with cores. A few cores draw from memory what each draws by itself, many share the socket's
    channels. The BF16 peak is left out where the instruction set is missing; a hypervisor may hide it.
    """
    socket, core_bytes_per_s = device(name), assumptions(name)["core_gb_per_s"].value * GIGA
    share = cores / socket.sm_count
    bf16 = socket.bf16_tensor_flops_per_s if has_bf16 else None
    return replace(
        socket,
        sm_count=cores,
        fp32_flops_per_s=socket.fp32_flops_per_s * share,
        bf16_tensor_flops_per_s=None if bf16 is None else bf16 * share,
        memory_bandwidth_bytes_per_s=min(
            socket.memory_bandwidth_bytes_per_s * max(share, 1.0), cores * core_bytes_per_s
        ),
        l2_bytes=math.ceil(socket.l2_bytes * share),
        source=f"{socket.source}; scaled to {cores} of {socket.sm_count} cores",
    )


def closest(gpu: str) -> tuple[str, ...]:
    """Names of the devices whose driver names are closest to a GPU's; none if nothing is close.

    >>> closest("NVIDIA A100-PCIE-40GB")
    ('a100',)
    """
    by_driver_name = _catalogue().by_driver_name
    near = get_close_matches(driver_key(gpu), by_driver_name, n=3)
    return tuple(dict.fromkeys(by_driver_name[key].name for key in near))


def _read(file: Traversable, kind: type[T]) -> T:
    try:
        return from_plain(from_toml(file.read_bytes()), kind)
    except DecodeError as error:
        raise ProfileError(
            f"the device file {file} cannot be read", why=str(error), remedy="Correct it."
        ) from None


def _hardware(name: str, sheet: _DataSheet, assumed: _Assumptions) -> Hardware:
    def flops_per_s(tflops: float | None) -> float | None:
        return None if tflops is None else tflops * TERA

    return Hardware(
        name=name,
        title=sheet.title,
        processor=sheet.provider,
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
        efficiency=Efficiency(
            bandwidth=assumed.bandwidth.value,
            cuda_cores=assumed.cuda_cores.value,
            tensor_cores=assumed.tensor_cores.value,
            unaligned=assumed.unaligned.value,
        ),
        source=sheet.source,
    )
