"""Tests on the CUDA provider: of a real GPU, or of the stubs that `make test-cuda-dry` builds."""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.optimized import written_by_runtime
from campo_onnx.runtime.onnxruntime.providers import cuda_problem
from campo_onnx.runtime.onnxruntime.sessions import session_options
from campo_onnx.runtime.registry import machine

STUB = "STUB"
_FIELDS = ("launches", "up", "down", "inside", "waits", "captures", "replays", "used_bytes", "peak_bytes")
_OWN, _HERE = Path(__file__).parent.parent / "data", Path(__file__).parent / "data"


def graphs() -> list[Path]:
    """The repository's graphs, and those of the folder CAMPO_GRAPHS."""
    shared = os.environ.get("CAMPO_GRAPHS", "")
    more = sorted(Path(shared).glob("*.onnx")) if shared else []
    names = {path.name for path in more}
    return [
        path for path in sorted([*_OWN.glob("*.onnx"), *_HERE.glob("*.onnx")]) if path.name not in names
    ] + more


def optimized_nodes(
    model: onnx.ModelProto, processor: str, *, folder: Path | None = None
) -> tuple[onnx.NodeProto, ...]:
    """The nodes that run, the copies and Casts that ONNX Runtime inserts included."""
    options = session_options(processor, threads=0, folder=folder)
    return tuple(written_by_runtime(model, processor, options).graph.node)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, saying why, where no CUDA provider loads."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    problem = cuda_problem() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if problem:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA provider: {problem}"))


@pytest.fixture(scope="session")
def cuda() -> Machine:
    """The machine, with its GPU."""
    return machine("cuda")


@dataclass(frozen=True)
class Stub:
    """Counters of the stub of the CUDA runtime."""

    library: ctypes.CDLL

    def counts(self) -> Mapping[str, int]:
        """Launches, copies, captures, bytes since :meth:`reset`."""
        values = (ctypes.c_longlong * len(_FIELDS))()
        self.library.stub_counts(values)
        return dict(zip(_FIELDS, values, strict=True))

    def reset(self) -> None:
        """Count from zero."""
        self.library.stub_reset()


@pytest.fixture
def stub(cuda: Machine) -> Stub:
    """The stub, for what only it can count."""
    if not cuda.device.startswith(STUB):
        pytest.skip("counted on the stubs only")
    counters = Stub(ctypes.CDLL("libcudart.so.13"))
    counters.reset()
    return counters
