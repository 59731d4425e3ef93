"""The process that runs under ``ncu``: one profiled step of each model, in the order given.

    python -m campo_onnx.runtime.onnxruntime.ncu_step [--dim NAME=SIZE ...] MODEL.onnx ...

Before each model's step it launches one kernel that no model is expected to launch, so that a table of
kernels can be divided by model. A model that does not run leaves no kernels behind its mark.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx.parser import parse_model

from campo_onnx.errors import CampoError, DeviceUnavailableError
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import CUDA, Machine
from campo_onnx.runtime.registry import load, machine, processor_for
from campo_onnx.runtime.timing import Step

_WARMUP = 2
_MARK_ELEMENTS = 12_345  # an odd size makes an odd grid
_MARK = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    mark (float[{_MARK_ELEMENTS}] x) => (bool[{_MARK_ELEMENTS}] y) {{ y = IsNaN (x) }}
"""
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def profile_steps(
    models: list[Path], here: Machine, dims: dict[str, int], switch: Callable[[bool], None]
) -> None:
    """Run one profiled step of each model."""
    mark = load(parse_model(_MARK), here).placed({"x": np.zeros(_MARK_ELEMENTS, np.float32)})
    mark()
    for path in models:
        step = _warm_step(path, here, dims)
        switch(True)
        mark()
        if step is not None:
            step()
        switch(False)


def _warm_step(path: Path, here: Machine, dims: dict[str, int]) -> Step | None:
    try:
        imported = import_model(path, dims)
        settings = LoadSettings(must_stay=False)
        program = load(imported.model, here, folder=imported.folder, settings=settings)
        step = program.placed(synthesize(imported.view))
        for _ in range(_WARMUP):
            step()
    except CampoError:
        return None
    return step


def _cuda_switch() -> Callable[[bool], None]:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DeviceUnavailableError("CUDA's driver does not load", why=str(error)) from None

    def switch(on: bool) -> None:
        code = driver.cuProfilerStart() if on else driver.cuProfilerStop()
        if code:
            raise DeviceUnavailableError(f"CUDA's profiler control answers {code}")

    return switch


def main(words: list[str]) -> None:
    """Run the command line; a failure ends the process with a message."""
    parser = argparse.ArgumentParser(prog="python -m campo_onnx.runtime.onnxruntime.ncu_step")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    options = parser.parse_args(words)
    dims = {name: int(size) for name, _, size in (text.rpartition("=") for text in options.dim)}
    try:
        here = machine(processor_for(CUDA))
        profile_steps(options.models, here, dims, _cuda_switch())
    except CampoError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
