"""A CUDA library keeps the code of one architecture that training steps run, and nothing in it moves."""

import struct
import zlib
from pathlib import Path

import pytest

from scripts.gpu.fatbin import fat_binaries, keep_only

PTX, ELF = 1, 2
ZSTD = 0x8000


def entry(kind: int, architecture: int, code: bytes, *, packed: bool = False) -> bytes:
    payload = zlib.compress(code) if packed else code
    payload += bytes(-len(payload) % 8)
    flags = ZSTD if packed else 0
    sizes = (64, len(payload), 0, 0)
    return (
        struct.pack(
            "<HHIQIIHHI8xQ8xQ", kind, 0, *sizes, 0, 0, architecture, flags, len(code) if packed else 0
        )
        + payload
    )


def fat_binary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def inflate(code: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(code)[:size]


ADD = b"\0.text._Z3addPf\0 code of a sum"
FLASH = b"\0.text._ZN11onnxruntime5flash16flash_fwd_kernelE\0 code of attention"
BOTH = ADD + FLASH


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "lib.so"
    path.write_bytes(
        b"text before "
        + fat_binary(entry(ELF, 75, ADD), entry(ELF, 90, ADD), entry(PTX, 90, ADD))
        + b" between "
        + fat_binary(entry(ELF, 90, FLASH, packed=True))
        + fat_binary(entry(ELF, 90, BOTH, packed=True))
        + fat_binary(entry(ELF, 75, ADD), entry(PTX, 80, b"for want of better"))
        + b" after"
    )
    return path


def test_only_what_steps_run_on_the_architecture_is_left(library: Path) -> None:
    before = library.read_bytes()
    kept = keep_only(library, 90, inflate)
    after = library.read_bytes()
    assert kept.entries == {"kept": 2, "other architecture": 3, "not in steps": 1, "ptx": 1}
    assert len(after) == len(before)
    assert after.count(ADD) == 1  # the other kernel of both is packed
    assert b"for want of better" in after
    assert b" between " in after


def test_what_is_blanked_is_for_a_gpu_that_nobody_has(library: Path) -> None:
    keep_only(library, 90, inflate)
    image = library.read_bytes()
    for units in fat_binaries(image):
        for unit in units:
            code = image[unit.payload_at : unit.payload_at + unit.payload_bytes]
            assert (unit.architecture == 1) == (not code.strip(b"\0"))


def test_a_library_without_the_architecture_keeps_no_machine_code(library: Path) -> None:
    kept = keep_only(library, 120, inflate)
    assert "kept" not in kept.entries
    assert kept.entries["ptx"] == 2  # the driver compiles them for any later GPU
