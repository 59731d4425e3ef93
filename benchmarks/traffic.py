"""Launches and bytes of one step of each of the paper's models: ours, ours fused, and torch eager's.

    python -m benchmarks.traffic [--models resnet50 ...] [--before FOLDER]

Counted, not measured: nodes that launch a kernel, and the bytes that they read and write; of torch, the
operations that it dispatches, on the meta device. Needs PyTorch. Writes results/traffic.json and .md.

Before is the project at the commit BEFORE. Its checkout writes the graphs, with and without the update:
``python -m benchmarks.zoo.export FOLDER/step`` and ``... FOLDER/gradients --optimizer none``.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pages import RESULTS, arguments, provenance, publish
from benchmarks.zoo.eager_traffic import eager_traffic
from benchmarks.zoo.export import ZOO, Entry, export
from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.export.optimizers import BY_NAME
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.traffic import Moved, Traffic, traffic
from campo_onnx.planning.pipeline import Optimized
from campo_onnx.training import updates
from campo_onnx.training.flat_state import ROW
from campo_onnx.training.flat_update import ROWS_A_RUN
from campo_onnx.training.low_weights import flat_weights

DEVICES = ("v100", "a100", "h200")
BEFORE = "9f1b147"
"""The last commit with the update in the graph and standard operators only."""


def row_of(name: str) -> dict[str, Any]:
    """Count one model at the paper's batch size on a V100, and predict its step."""
    entry = ZOO[name]
    batch = max(entry.batch_sizes)
    update = _update(entry)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        export(name, batch, optimizer=None, path=path, unscale=False, target="v100")
        results = {
            n: optimize_model(
                path, Options(target=target(n), lists=oplists("campo"), flat_weights=flat_weights)
            )
            for n in DEVICES
        }
    original = results[DEVICES[0]].given_traffic
    planned = results[DEVICES[0]].planned_traffic
    return {
        "model": name,
        "batch": batch,
        "ours": _facts(original, update),
        "planned": _facts(planned, update),
        "fused": _moved(original.fused + update),
        "weight_update": _moved(update),
        "peak_bytes": {"fp32": original.peak_bytes, "planned": planned.peak_bytes},
        "eager": eager_traffic(entry, batch),
        "step_ms": _step_ms(results),
    }


def before(name: str, folder: Path) -> dict[str, Any]:
    """Count and predict the graphs that the exporter wrote before."""
    file = f"{name}_b{max(ZOO[name].batch_sizes)}.onnx"
    step = folder / "gradients" / file
    results = {n: optimize_model(step, Options(target=target(n), lists=oplists("campo"))) for n in DEVICES}
    whole = traffic(import_model(folder / "step" / file).view)
    return {"total": _moved(whole.total), "step_ms": _step_ms(results)}


def _step_ms(results: Mapping[str, Optimized]) -> dict[str, dict[str, float]]:
    return {
        n: {"fp32": result.plan.fp32_us / 1e3, "planned": result.plan.predicted_us / 1e3}
        for n, result in results.items()
    }


def _update(entry: Entry) -> Moved:
    """Count the update of flat tensors, with the check that all gradients are finite."""
    import torch

    with torch.device("meta"):
        parameters = [p for p in entry.build().parameters() if p.requires_grad]
    rows = sum(math.ceil(p.numel() / ROW) for p in parameters)
    check = updates.check_model(rows, clip_norm=None, finite=True)
    whole = updates.update_model(BY_NAME[entry.optimizer], rows, scaled=True, target="cuda")
    moved = traffic(import_model(whole).view).total
    runs = math.ceil(rows / ROWS_A_RUN["cuda"])
    counted = Moved(launches=moved.launches * runs, moved_bytes=moved.moved_bytes)
    return counted + traffic(import_model(check).view).total


def _facts(counts: Traffic, update: Moved) -> dict[str, Any]:
    parts = {"total": counts.total + update, "casts": counts.casts, "weight update": update}
    parts |= {family.value: moved for family, moved in counts.by_family.items()}
    return {name: _moved(moved) for name, moved in parts.items()}


def _moved(moved: Moved) -> Mapping[str, float]:
    return {"launches": moved.launches, "moved_bytes": moved.moved_bytes}


def main() -> None:
    """Count every model, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*ZOO], default=[*ZOO])
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="graphs of the commit before")
    options = parser.parse_args()
    published = json.loads((RESULTS / "traffic.json").read_text(encoding="utf-8"))
    by_model = {row["model"]: row for row in published["rows"]}
    for name in options.models:
        previous = by_model.get(name, {}).get("before")
        by_model[name] = row_of(name)
        by_model[name]["before"] = previous if options.before is None else before(name, options.before)
        print(name, flush=True)
    rows = [by_model[name] for name in ZOO if name in by_model]
    facts = {"made": provenance(), "device": target(DEVICES[0]).hardware.title, "before": BEFORE}
    print(*publish("traffic", {**facts, "rows": rows}))


if __name__ == "__main__":
    main()
