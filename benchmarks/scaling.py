"""How time and memory grow with the graph: the shipped BERT layer repeated, up to 50,000 nodes.

    python -m benchmarks.scaling [--layers 1 5 25 100 208]

Writes results/scaling.json and .md. Each size runs in a process of its own, so that its peak of memory is
its own. Growth is what counts here; the absolute times belong to the machine.
"""

import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx

from benchmarks.pages import arguments, made, publish
from benchmarks.steps import in_own_process
from campo_onnx import Options, device, export_model, oplists, optimize_model
from campo_onnx.ir.importer import import_model

LAYER = Path(__file__).parents[1] / "examples" / "bert_layer.onnx"


def repeated(layers: int) -> onnx.ModelProto:
    """Stack the layer: each copy reads what the one below computes, and has a loss of its own."""
    layer = onnx.load(LAYER)
    norm = [node for node in layer.graph.node if node.op_type == "LayerNormalization"][-1]
    stacked = onnx.ModelProto()
    stacked.CopyFrom(layer)
    fields = ("node", "output", "initializer", "value_info")
    for field in (*fields, "input"):
        stacked.graph.ClearField(field)
    below = ""
    for position in range(layers):
        graph = onnx.compose.add_prefix_graph(layer.graph, f"layer{position}.")
        hidden = f"layer{position}.input.hidden"
        for node in graph.node if below else ():
            node.input[:] = [below if name == hidden else name for name in node.input]
        for field in fields:
            getattr(stacked.graph, field).extend(getattr(graph, field))
        stacked.graph.input.extend(v for v in graph.input if not (below and v.name == hidden))
        below = f"layer{position}.{norm.output[0]}"
    return stacked


def measure(layers: int) -> dict[str, Any]:
    """Optimize and write `layers` layers once: nodes, seconds, peak of memory."""
    options = Options(device=device("v100"), lists=oplists("campo"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stacked.onnx"
        onnx.save(repeated(layers), source)
        times = [time.perf_counter()]
        nodes = len(import_model(source).view.nodes)
        times.append(time.perf_counter())
        result = optimize_model(source, options)
        times.append(time.perf_counter())
        export_model(result.model, Path(folder) / "mixed.onnx")
        times.append(time.perf_counter())
    import_s, optimize_s, export_s = (end - start for start, end in pairwise(times))
    return {
        "layers": layers,
        "nodes": nodes,
        "import_s": import_s,
        "plan_and_rewrite_s": optimize_s - import_s,  # it imports as well
        "export_s": export_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure each size in a process of its own."""
    parser = arguments(__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 5, 25, 100, 208])
    rows = [in_own_process(measure, layers) for layers in parser.parse_args().layers]
    print(*publish("scaling", {"made": made(), "rows": rows}))


if __name__ == "__main__":
    main()
