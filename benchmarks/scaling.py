"""How time and memory grow with the graph: the shipped BERT layer repeated, up to 50,000 nodes.

    python benchmarks/scaling.py [--layers 1,5,25,100,208]

Writes benchmarks/results/scaling.md. Each size runs in a process of its own, so that its peak of
memory is its own. Growth is what counts here; the absolute times belong to the machine.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path

import onnx

ROOT = Path(__file__).parent.parent
LAYER = ROOT / "examples" / "bert_layer.onnx"
RESULT = Path(__file__).parent / "results" / "scaling.md"
STAGES = ("import", "pose", "decide", "rewrite", "export")


def repeated(layers: int) -> onnx.ModelProto:
    """Stack the layer: each copy reads what the one below computes, and has a loss of its own."""
    layer = onnx.load(LAYER)
    norm = [node for node in layer.graph.node if node.op_type == "LayerNormalization"][-1]
    stacked = onnx.ModelProto()
    stacked.CopyFrom(layer)
    for field in ("node", "input", "output", "initializer", "value_info"):
        del getattr(stacked.graph, field)[:]
    below = ""
    for number in range(layers):
        copy = onnx.ModelProto()
        copy.CopyFrom(layer)
        graph = onnx.compose.add_prefix_graph(copy.graph, f"layer{number}.")
        hidden = f"layer{number}.input0"
        for node in graph.node:
            if below:
                node.input[:] = [below if name == hidden else name for name in node.input]
        for field in ("node", "output", "initializer", "value_info"):
            getattr(stacked.graph, field).extend(getattr(graph, field))
        stacked.graph.input.extend(v for v in graph.input if not (below and v.name == hidden))
        below = f"layer{number}.{norm.output[0]}"
    return stacked


def measure(layers: int) -> dict[str, float]:
    """Run every stage once on `layers` layers; seconds per stage, nodes, peak MiB."""
    from campo_onnx.devices.datasheet import device
    from campo_onnx.ir.exporter import export_model
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.oplists import preset
    from campo_onnx.optimize.rewrite import rewrite
    from campo_onnx.options import Options
    from campo_onnx.pipeline import decide, problem_of

    options = Options(device=device("v100"), lists=preset("campo"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stacked.onnx"
        onnx.save(repeated(layers), source)
        clock = [time.perf_counter()]
        imported = import_model(source)
        clock.append(time.perf_counter())
        problem = problem_of(imported, options)
        clock.append(time.perf_counter())
        plan = decide(problem, imported, options)
        clock.append(time.perf_counter())
        mixed = rewrite(imported, plan)
        clock.append(time.perf_counter())
        export_model(mixed, Path(folder) / "mixed.onnx")
        clock.append(time.perf_counter())
    stages = dict(zip(STAGES, (b - a for a, b in pairwise(clock)), strict=True))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"layers": layers, "nodes": len(imported.view.nodes), "peak_mib": peak_mib, **stages}


def document(rows: list[dict[str, float]]) -> str:
    """Write the rows as a Markdown document."""
    lines = [
        "# Growth with the graph",
        "",
        f"The shipped BERT layer repeated, strategy optimal, device v100; {date.today().isoformat()}, two "
        "shared CPU cores. Seconds per stage; microseconds per node should stay level.",
        "",
        f"| layers | nodes | {' | '.join(STAGES)} | total s | us per node | peak MiB |",
        "|--:" * (len(STAGES) + 5) + "|",
    ]
    for row in rows:
        total = sum(row[stage] for stage in STAGES)
        stages = " | ".join(f"{row[stage]:.2f}" for stage in STAGES)
        lines.append(
            f"| {row['layers']} | {row['nodes']} | {stages} | {total:.2f} | {total / row['nodes'] * 1e6:.0f} "
            f"| {row['peak_mib']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="1,5,25,100,208")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one)))
        return
    rows = []
    for layers in map(int, arguments.layers.split(",")):
        command = [sys.executable, __file__, "--one", str(layers)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(answer.stdout))
        print(rows[-1], file=sys.stderr)
    RESULT.write_text(document(rows), encoding="utf-8")
    print(document(rows))


if __name__ == "__main__":
    main()
