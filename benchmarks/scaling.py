"""How time and memory grow with the graph: the shipped BERT layer repeated, up to 100,032 nodes.

    python -m benchmarks.scaling [--layers 1 5 26 104 521]

Writes results/scaling.json and .md: processor time and the peak of memory of ``campo-onnx optimize``, as the
system counts them. Growth is what counts here; the absolute times belong to the machine.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks.pages import arguments, provenance, publish
from benchmarks.steps import in_own_process

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
    """Optimize `layers` layers once, with the program: nodes, CPU seconds, peak of memory."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stacked.onnx"
        nodes = in_own_process(stack, layers, source)
        words = ["optimize", str(source), "-o", f"{folder}/mixed.onnx", "--device", "v100", "--quiet"]
        child = subprocess.Popen([sys.executable, "-m", "campo_onnx", *words])
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{' '.join(words)}: {child.returncode}")
    return {
        "layers": layers,
        "nodes": nodes,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
    }


def stack(layers: int, target: Path) -> int:
    """Write the stacked layers to a file; gives the number of nodes."""
    stacked = repeated(layers)
    onnx.save(stacked, target)
    return len(stacked.graph.node)


def main() -> None:
    """Measure each size."""
    parser = arguments(__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 5, 26, 104, 521])
    rows = [measure(layers) for layers in parser.parse_args().layers]
    print(*publish("scaling", {"made": provenance(), "rows": rows}))


if __name__ == "__main__":
    main()
