"""Which low precision `optimize --precision auto` takes, graph by graph, and why.

    python -m benchmarks.auto_precision GRAPH... [--devices v100 a100 h200] [--dim N=8]

Nothing is run: times are predictions from public figures. Writes results/auto_precision.json and .md.
"""

from pathlib import Path
from typing import Any

import onnx

from benchmarks.pages import arguments, provenance, publish
from campo_onnx import Options, oplists, target
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.values.loss_scale import loss_scaling
from campo_onnx.planning.auto_precision import choose_precision

DEVICES = ("v100", "a100", "h200")
"""One without BF16, and two with it."""


def open_dimensions(graph: Path) -> set[str]:
    """Names of the dimensions of a graph's inputs."""
    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim}


def chosen(graph: Path, name: str, dims: dict[str, int]) -> dict[str, Any]:
    """Choose for one graph on one device."""
    on = target(name)
    dims = {dim: size for dim, size in dims.items() if dim in open_dimensions(graph)}
    imported = import_model(graph, dims)
    options = Options(target=on, lists=oplists("campo"), dims=dims)
    choice = choose_precision(graph, options)
    times = {low.value: plan.predicted_us for low, plan in choice.plans.items()}
    nodes = {low.value: len(plan.low_nodes) for low, plan in choice.plans.items()}
    return {
        "graph": graph.stem,
        "nodes": len(imported.view.nodes),
        "device": name,
        "scaled": loss_scaling(imported.view).scale is not None,
        "low": choice.low.value,
        "why": choice.why,
        "fp32_us": next((plan.fp32_us for plan in choice.plans.values()), None),
        **{f"{low.value}_us": times.get(low.value) for low in (Precision.FP16, Precision.BF16)},
        **{f"{low.value}_nodes": nodes.get(low.value) for low in (Precision.FP16, Precision.BF16)},
    }


def main() -> None:
    """Choose for every graph, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH")
    parser.add_argument("--devices", nargs="+", default=DEVICES)
    parser.add_argument("--dim", nargs="*", default=[], metavar="NAME=SIZE", help="sizes of open dimensions")
    asked = parser.parse_args()
    dims = {name: int(size) for name, _, size in (one.rpartition("=") for one in asked.dim)}
    rows = [chosen(graph, name, dims) for graph in asked.graphs for name in asked.devices]
    print(*publish("auto_precision", {"made": provenance(), "devices": [*asked.devices], "rows": rows}))


if __name__ == "__main__":
    main()
