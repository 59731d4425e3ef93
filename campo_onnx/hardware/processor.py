"""The CPU of this machine as its kernel describes it: vendor, family, model, and instruction sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

UNITS = ("amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "bf16", "svebf16")
"""Instruction sets with low-precision products."""

BF16_UNITS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""Those of them that multiply in BF16 and add in FP32."""

_TABLE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One CPU."""

    vendor: str  # `"AuthenticAMD"`, `"GenuineIntel"`, or Arm's code of the implementer, such as `"0x41"`
    # their numbers; for Arm, architecture and part
    family: int
    model: int
    features: frozenset[str]  # instruction sets that programs may use here. A hypervisor may hide some.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorKind:
    """CPUs that share the figures of a device file."""

    vendor: str
    family: int
    models: tuple[tuple[int, int], ...]

    def includes(self, processor: Processor) -> bool:
        """Whether a CPU is of this kind.

        >>> genoa = ProcessorKind(vendor="AuthenticAMD", family=25, models=((16, 31),))
        >>> genoa.includes(Processor(vendor="AuthenticAMD", family=25, model=17, features=frozenset()))
        True
        """
        return (self.vendor, self.family) == (processor.vendor, processor.family) and any(
            first <= processor.model <= last for first, last in self.models
        )


def parse_cpuinfo(text: str) -> Processor | None:
    r"""Read the first CPU of a ``/proc/cpuinfo``; None if the kernel does not tell its model.

    >>> parse_cpuinfo("CPU implementer: 0x41\nCPU architecture: 8\nCPU part: 0xd40\nFeatures: bf16").model
    3392
    """
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            facts.setdefault(key.strip(), value.strip())
    return _x86(facts) or _arm(facts)


def _x86(facts: Mapping[str, str]) -> Processor | None:
    family, model = facts.get("cpu family", ""), facts.get("model", "")
    if not (family.isdecimal() and model.isdecimal()):
        return None
    features = frozenset(facts.get("flags", "").split())
    return Processor(
        vendor=facts.get("vendor_id", ""), family=int(family), model=int(model), features=features
    )


def _arm(facts: Mapping[str, str]) -> Processor | None:
    try:
        family, model = int(facts["CPU architecture"]), int(facts["CPU part"], 16)
    except (KeyError, ValueError):
        return None
    features = frozenset(facts.get("Features", "").split())
    return Processor(vendor=facts.get("CPU implementer", ""), family=family, model=model, features=features)


@cache
def this_processor() -> Processor | None:
    """Identify this machine's CPU; None where its kernel does not tell, as outside Linux."""
    if not _TABLE.is_file():
        return None
    return parse_cpuinfo(_TABLE.read_text(encoding="utf-8", errors="replace"))
