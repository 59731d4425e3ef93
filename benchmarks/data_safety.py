"""Lists alone against safety measured on data, on a residual stack and a two-layer BERT.

    python benchmarks/data_safety.py

Writes benchmarks/results/data_safety.md. The graphs are small, so they are planned for a V100 whose
launches cost nothing: at their real cost everything stays FP32 and there is nothing to judge. The
gradients are scaled by a loss scale written into the graph, as training would.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from campo_onnx.data_safety import measure_safety
from campo_onnx.devices.datasheet import device
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.oplists import preset
from campo_onnx.pipeline import Options, decide, pose
from campo_onnx.runtime.feeds import synthesize

ROOT = Path(__file__).parent.parent
GRAPHS = ("resblocks", "bert2_mlm_sdpa", "alexnet_like", "mlp")
RESULT = Path(__file__).parent / "results" / "data_safety.md"
LOSS_SCALE = 2.0**14
BUDGETS = (1e-2, 5e-2)
BATCHES = 2


def with_loss_scale(model: onnx.ModelProto, scale: float) -> onnx.ModelProto:
    """Scale the gradients: the loss's own gradient is a 1 divided by the number of samples."""
    scaled = onnx.ModelProto()
    scaled.CopyFrom(model)
    graph = scaled.graph
    ones = {
        t.name
        for t in graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and np.array_equal(numpy_helper.to_array(t), np.float32(1))
    }
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
        mask = np.ones_like(feeds["input2"])
        mask[:, -4:] = 0
        feeds["input2"] = mask
    return feeds


def main() -> None:
    """Judge every graph and write the table."""
    eager = replace(device("v100"), launch_us=1e-6, host_us=1e-6)
    options = Options(device=eager, lists=preset("campo"))
    lines = [
        "# Safety judged on data",
        "",
        f"{BATCHES} synthesized batches, loss scale {LOSS_SCALE:g}, a V100 without launch costs (estimate), "
        f"CPU emulation, {date.today().isoformat()}. Errors are relative to FP32, of the worst output; the "
        "lists' own error is what FP16 does to these untrained networks.",
        "",
        "| graph | budget | forbidden | released | lists alone us | on data us | faster | worst error, lists "
        "| worst error, data | trials |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in GRAPHS:
        model = with_loss_scale(onnx.load(ROOT / "tests" / "data" / f"{name}.onnx"), LOSS_SCALE)
        imported = import_model(model)
        batches = [batch(imported.view, seed) for seed in range(BATCHES)]
        lists_us = decide(pose(imported, options), imported, options).predicted_us
        for budget in BUDGETS:
            found = measure_safety(imported, options, batches, budget=budget)
            judged = found.applied_to(options)
            data_us = decide(pose(imported, judged), imported, judged).predicted_us
            lines.append(
                f"| {name} | {budget:g} | {len(found.forbidden)} | {len(found.released)} | {lists_us:.2f} "
                f"| {data_us:.2f} | {lists_us / data_us - 1:+.1%} | {max(found.drift_before.values()):.1e} "
                f"| {max(found.drift_after.values()):.1e} | {found.trials} |"
            )
            print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
