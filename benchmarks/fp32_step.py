"""Time of a step as it is, in a process of its own: what is set before CUDA starts holds for it.

python -m benchmarks.fp32_step cuda GRAPH.onnx [channels-last]
"""

import json
import sys
from pathlib import Path

from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import load, machine, processor_for
from campo_onnx.runtime.timing import GPU_SPIN_S, Effort, measure


def main() -> None:
    """Load, time and print."""
    processor, graph, *layout = sys.argv[1:]
    # Few kernels take channels last: what lacks one runs on the CPU, and the note says so.
    channels_last = layout == ["channels-last"]
    settings = LoadSettings(channels_last=channels_last, must_stay=not channels_last)
    here = machine(processor_for(processor))
    imported = as_it_runs(import_model(Path(graph)), Place.on(here))
    program = load(imported.model, here, folder=imported.folder, settings=settings)
    effort = Effort(warmup=3, repeats=50, budget_s=5.0, spin_s=GPU_SPIN_S if processor == "cuda" else 0.0)
    time = measure(program.placed(synthesize(imported.view)), effort)
    print(json.dumps({"step_us": time.median_us, "note": program.note}))


if __name__ == "__main__":
    main()
