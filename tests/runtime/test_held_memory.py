"""Freed memory is used again while a step runs in pieces, and given back behind it."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from contextlib import nullcontext
from campo_onnx.runtime.held_memory import held_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
PAGES = 16_384

def tensors():
    for _ in range(8):
        memory = ctypes.c_void_p(library.malloc(PAGES * 4096))
        ctypes.memset(memory, 1, PAGES * 4096)
        library.free(memory)

def pages(context):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with context:
        tensors()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / PAGES

def resident():
    return int(open("/proc/self/statm").read().split()[1]) / PAGES

first = resident()
print(pages(nullcontext()), pages(held_memory()), pages(nullcontext()), resident() - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to hold freed memory")
def test_pages_are_taken_once() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, held, behind, kept = map(float, ran.stdout.split())
    assert held < before / 4  # eight times in turn the same memory
    assert behind > before / 2
    assert kept < 1.0
