"""Memory that the CUDA provider holds after two steps, beside what is alive at a time.

    python -m benchmarks.zoo.held GRAPH.onnx ...

On the stubs of CUDA (tests/cuda) the sizes that ONNX Runtime's arena asks for are real; zoo/memory.py has the
figures of the zoo's graphs. ``STUB_GPU_MIB=300000`` makes the stub large enough for all of them.
"""

import ctypes
import sys
from pathlib import Path

from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.traffic import traffic
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import load, machine

_FIELDS = 9
_PEAK = 8  # among what the stub counts, as tests/cuda/conftest.py names it


def held_bytes(path: Path) -> tuple[float, float]:
    """Run two steps; give the most that the device held, and the most that is alive at a time."""
    imported = import_model(path)
    step = load(imported.model, machine("cuda")).placed(synthesize(imported.view))
    step()
    step()
    counts = (ctypes.c_longlong * _FIELDS)()
    ctypes.CDLL("libcudart.so.13").stub_counts(counts)
    return float(counts[_PEAK]), traffic(imported.view).peak_bytes


def main() -> None:
    """Print a line a graph; each in a process of its own, as its memory stays with it."""
    if len(sys.argv) == 2:
        held, alive = held_bytes(Path(sys.argv[1]))
        print(f"{Path(sys.argv[1]).stem}: holds {held / 1e9:.1f} GB, alive {alive / 1e9:.1f} GB", flush=True)
        return
    import subprocess

    for path in sys.argv[1:]:
        subprocess.run([sys.executable, "-m", "benchmarks.zoo.held", path], check=True)


if __name__ == "__main__":
    main()
