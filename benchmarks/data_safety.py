"""Safety by lists alone against safety by data, on a residual stack and a two-layer BERT.

    python -m benchmarks.data_safety

Writes results/data_safety.json and .md. The graphs are small, so they are planned for a V100 whose launches
cost nothing: at their real cost everything stays FP32 and there is nothing to decide. The gradients are
scaled by a loss scale written into the graph, as training would.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.pages import made, publish
from campo_onnx import Options, device, oplists, optimize_model
from campo_onnx.data_safety import measure_safety
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.runtime.feeds import synthesize

GRAPHS = Path(__file__).parents[1] / "tests" / "data"
NAMES = ("resblocks", "bert2_mlm_sdpa", "alexnet_like", "mlp")
LOSS_SCALE = 2.0**14
BUDGETS = (1e-2, 5e-2)
BATCHES = 2

Row = dict[str, Any]


def with_loss_scale(model: onnx.ModelProto, scale: float) -> onnx.ModelProto:
    """Scale the gradients: the loss's own gradient is a 1 divided by the number of samples."""
    scaled = onnx.ModelProto()
    scaled.CopyFrom(model)
    graph = scaled.graph
    ones = {t.name for t in graph.initializer if np.array_equal(numpy_helper.to_array(t), np.float32(1))}
    seeds = [n for n in graph.node if n.op_type == "Div" and n.input[0] in ones]
    if len(seeds) != 1:
        raise SystemExit(f"expected one gradient of the loss, found {[n.name for n in seeds]}")
    graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), "loss_scale_constant"))
    seeds[0].input[0] = "loss_scale_constant"
    return scaled


def batch(view: GraphView, seed: int) -> dict[str, NDArray[Any]]:
    """Made-up values, the attention mask of BERT as real ones are: ones, then zeros."""
    feeds = synthesize(view, seed=seed)
    if "input2" in feeds:
        feeds["input2"] = np.ones_like(feeds["input2"])
        feeds["input2"][:, -4:] = 0
    return feeds


def rows_of(name: str, budgets: tuple[float, ...] = BUDGETS, batches: int = BATCHES) -> Iterator[Row]:
    """Decide about one graph by the lists alone, and by data with every budget of error."""
    free = replace(device("v100"), launch_us=1e-6, host_us=1e-6)
    options = Options(device=free, lists=oplists("campo"))
    model = with_loss_scale(onnx.load(GRAPHS / f"{name}.onnx"), LOSS_SCALE)
    imported = import_model(model)
    values = [batch(imported.view, seed) for seed in range(batches)]
    lists_us = optimize_model(model, options).plan.predicted_us
    for budget in budgets:
        found = measure_safety(imported, options, values, budget=budget)
        yield {
            "graph": name,
            "budget": budget,
            "forbidden": len(found.forbidden),
            "released": len(found.released),
            "lists_us": lists_us,
            "data_us": optimize_model(model, found.applied_to(options)).plan.predicted_us,
            "worst_error_lists": max(found.drift_before.values()),
            "worst_error_data": max(found.drift_after.values()),
            "trials": found.trials,
        }


def main() -> None:
    """Decide about every graph, and write the page."""
    rows = [row for name in NAMES for row in rows_of(name)]
    data = {"made": made(), "batches": BATCHES, "loss_scale": LOSS_SCALE, "rows": rows}
    print(*publish("data_safety", data))


if __name__ == "__main__":
    main()
