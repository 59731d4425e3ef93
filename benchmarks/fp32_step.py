"""Microseconds of a step as it is, in a process of its own: what is set before CUDA starts holds for it.

python -m benchmarks.fp32_step cuda GRAPH.onnx
"""

import sys
from pathlib import Path

from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import load, machine, processor_for
from campo_onnx.runtime.timing import GPU_SPIN_S, Effort, measure


def main() -> None:
    """Load, time and print."""
    processor, graph = sys.argv[1:]
    imported = import_model(Path(graph))
    program = load(imported.model, machine(processor_for(processor)), folder=imported.folder)
    effort = Effort(warmup=3, repeats=50, budget_s=5.0, spin_s=GPU_SPIN_S if processor == "cuda" else 0.0)
    print(measure(program.placed(synthesize(imported.view)), effort).median_us)


if __name__ == "__main__":
    main()
