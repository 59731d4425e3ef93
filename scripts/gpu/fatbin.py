"""Machine code in a CUDA library: what it is for, and a copy of the library without what is not needed.

nvcc packs a compile unit's code into a *fat binary*: one entry for each architecture, and often PTX, which a
driver compiles for any later one. The layout of the file stays as it is, so nothing in it moves: entries that
are not needed become entries of an architecture that nobody has, full of zeros, which xz shrinks to nothing.
"""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_FILE_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
_ENTRY_HEADER = struct.Struct("<HHIQIIHHI8xQ8xQ")
_ARCHITECTURE_AT = 28
_ZSTD = 0x8000
_PTX, _ELF = 1, 2
_NOBODYS = 1  # an architecture that no GPU has
_KERNEL = re.compile(rb"\.text\.([\w$]+)")

NOT_IN_STEPS = re.compile(
    rb"cutlass|5flash|fmha|moe|MoE|mmha|paged|[Aa]ttention|fpA_int|weight_only|int4|fp4|[Qq]uant|beam|Beam|nms|NMS"
)
"""Families that no training step runs: attention in one kernel, mixtures of experts, quantization, search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Code of one compile unit for one architecture.

    Parameters
    ----------
    at, payload_at, payload_bytes
        Where the entry and its code begin in the file, and how long the code is.
    is_ptx
        Whether it is PTX rather than machine code.
    architecture
        Compute capability times ten, such as 90.
    is_packed
        Whether the code is compressed with zstd, and to how many bytes it unfolds.
    unpacked_bytes
        Size of the code when unpacked.
    """

    at: int
    payload_at: int
    payload_bytes: int
    is_ptx: bool
    architecture: int
    is_packed: bool
    unpacked_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Entries and bytes that a slim library keeps, and those that it loses, by the reason.

    Parameters
    ----------
    entries, code_bytes
        By ``"kept"``, ``"ptx"`` (kept for want of machine code), ``"other architecture"`` and
        ``"not in steps"``.
    """

    entries: Counter[str]
    code_bytes: Counter[str]


def fat_binaries(image: bytes | mmap.mmap) -> Iterator[tuple[Entry, ...]]:
    """Find the fat binaries in a library, each with its entries."""
    at = image.find(_MAGIC)
    while at >= 0:
        _, version, header_bytes, entries_bytes = _FILE_HEADER.unpack_from(image, at)
        begin, end = at + header_bytes, at + header_bytes + entries_bytes
        if version != 1 or header_bytes != _FILE_HEADER.size or end > len(image):
            at = image.find(_MAGIC, at + len(_MAGIC))
            continue
        yield tuple(_entries(image, begin, end))
        at = image.find(_MAGIC, end)


def _entries(image: bytes | mmap.mmap, begin: int, end: int) -> Iterator[Entry]:
    while begin < end:
        fields = _ENTRY_HEADER.unpack_from(image, begin)
        kind, _, header_bytes, payload_bytes, _, _, _, _, architecture, flags, unpacked_bytes = fields
        if header_bytes == 0:
            return
        yield Entry(
            at=begin,
            payload_at=begin + header_bytes,
            payload_bytes=payload_bytes,
            is_ptx=kind == _PTX,
            architecture=architecture,
            is_packed=bool(flags & _ZSTD),
            unpacked_bytes=unpacked_bytes,
        )
        begin += header_bytes + payload_bytes


def keep_only(
    library: Path,
    architecture: int,
    unpack: Callable[[bytes, int], bytes],
    not_needed: re.Pattern[bytes] = NOT_IN_STEPS,
) -> Kept:
    """Blank, in place, code for other architectures and kernels of families that are not needed.

    A fat binary without machine code for the architecture keeps its PTX.

    Parameters
    ----------
    library
        The file.
    architecture
        Compute capability times ten.
    unpack
        Decompresses zstd, given the packed bytes and the size of what comes out.
    not_needed
        Matches mangled names of kernels. A compile unit goes only if all of its kernels match.
    """
    entries: Counter[str] = Counter()
    code_bytes: Counter[str] = Counter()
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        for units in list(fat_binaries(image)):
            has_code = any(not unit.is_ptx and unit.architecture == architecture for unit in units)
            for unit in units:
                fate = _fate(unit, image, architecture, has_code, unpack, not_needed)
                entries[fate] += 1
                code_bytes[fate] += unit.payload_bytes
                if fate not in ("kept", "ptx"):
                    _blank(unit, image)
    return Kept(entries=entries, code_bytes=code_bytes)


def _fate(
    unit: Entry,
    image: mmap.mmap,
    architecture: int,
    has_code: bool,
    unpack: Callable[[bytes, int], bytes],
    not_needed: re.Pattern[bytes],
) -> str:
    if unit.is_ptx:
        return "other architecture" if has_code else "ptx"
    if unit.architecture != architecture:
        return "other architecture"
    code = image[unit.payload_at : unit.payload_at + unit.payload_bytes]
    kernels = set(_KERNEL.findall(unpack(code, unit.unpacked_bytes) if unit.is_packed else code))
    is_needless = bool(kernels) and all(not_needed.search(kernel) for kernel in kernels)
    return "not in steps" if is_needless else "kept"


def _blank(unit: Entry, image: mmap.mmap) -> None:
    image[unit.payload_at : unit.payload_at + unit.payload_bytes] = bytes(unit.payload_bytes)
    # A driver that loads all code at once must not take zeros for code of this GPU.
    struct.pack_into("<I", image, unit.at + _ARCHITECTURE_AT, _NOBODYS)
