"""Speed-ups by low precision that others published, beside our predictions. Nothing is run.

    python -m benchmarks.published [--work DIR] [--only 'v100-gnmt*'] [--report]

Rows of NVIDIA's slides (mixed precision training, GTC 2019) and of Das et al. (2018, dynamic fixed point),
by ``rows.toml``. It exports the networks at full size, so it needs PyTorch, and plans each by public figures
of the device. Finished steps are kept below ``--work``. Writes results/published.json and .md.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evaluation.strategies import OPTIMAL, STRATEGIES, label_of
from benchmarks.pages import RESULTS, arguments, provenance, publish
from benchmarks.steps import Call, Records, Step, add_arguments, call_of, drive
from campo_onnx import Precision, oplists, optimize_model, target
from campo_onnx.files.codec import from_toml
from campo_onnx.hardware.datasheet import GIGA, TERA
from campo_onnx.planning.options import Options
from campo_onnx.targets.target import Target

Row = Mapping[str, Any]

NVIDIA, CAMPO = "nvidia-amp", "campo"
PLANNED = (NVIDIA, CAMPO, OPTIMAL)
"""Rules as the slides teach them, the traverses of the paper, and the exact optimum."""

KNIGHTS_MILL = "knights_mill"


@cache
def _rows() -> tuple[Row, ...]:
    return tuple(from_toml(Path(__file__).with_name("rows.toml").read_bytes())["rows"])


def device_of(name: str) -> tuple[Target, Precision]:
    """Describe a device, and the format that is low on it.

    Das et al. multiply 16-bit integers at twice FP32's rate on a Xeon Phi 7295. No runtime of today does:
    planned is a CPU with BF16 units of that rate, as OpenVINO runs graphs. 72 cores x 1.5 GHz x 128 FLOPs a
    cycle, or 256 operations on 16-bit integers; memory of 400 GB/s; 1 MB of second-level cache for two cores.
    """
    if name != KNIGHTS_MILL:
        return target(name), Precision.FP16
    like = target("zen4", "openvino")
    hardware = replace(
        like.hardware,
        title="Intel Xeon Phi 7295 (Knights Mill)",
        sm_count=72,
        l2_bytes=36 * 2**20,
        memory_bandwidth_bytes_per_s=400 * GIGA,
        fp32_flops_per_s=13.8 * TERA,
        bf16_tensor_flops_per_s=27.6 * TERA,
        source="Intel's product page; Hot Chips 27 and 29",
    )
    return replace(like, hardware=hardware), Precision.BF16


def steps_of(work: Path) -> Iterator[Step]:
    """Plan every network for every device that a row names, with the batches it names."""
    for row in _rows():
        for batch in dict.fromkeys((row["fp32_batch"], row["low_batch"])):
            yield Step(
                name=_name(row, batch),
                work=partial(_plan, work, row["network"], row["device"], batch),
                seconds=300,
                asked={"planned": PLANNED},
            )


def _name(row: Row, batch: int) -> str:
    return f"{row['device']}-{row['network']}-{batch}"


def _plan(work: Path, network: str, device: str, batch: int, call: Call) -> Any:
    path = work / "graphs" / f"{network}-{batch}.onnx"
    facts = _export(network, batch, path) | {"batch": batch}
    on, low = device_of(device)
    options = Options(target=on, lists=oplists(CAMPO), low=low)
    for name in PLANNED:
        strategy, lists = next(row for row in STRATEGIES.values() if label_of(*row) == name)
        plan = optimize_model(path, replace(options, strategy=strategy, lists=oplists(lists))).plan
        facts |= {"fp32_us": plan.fp32_us, f"{name}_us": plan.predicted_us}
    return facts


def _export(network: str, batch: int, path: Path) -> dict[str, Any]:
    import torch

    from benchmarks.published.networks import NETWORKS
    from benchmarks.zoo import TITLES
    from benchmarks.zoo.export import export
    from campo_onnx.export.torch import export_training_step

    path.parent.mkdir(parents=True, exist_ok=True)
    if network in TITLES:
        model = export(network, batch, optimizer="momentum", path=path)
        return {"title": TITLES[network], "size": "as published", "nodes": len(model.graph.node)}
    entry = NETWORKS[network]
    inputs, targets = entry.batch(batch)
    with torch.device("meta"):
        module = entry.build()
    model = export_training_step(module, entry.loss, inputs, targets, optimizer=entry.optimizer, path=path)
    return {"title": entry.title, "size": entry.size, "nodes": len(model.graph.node)}


def collect(records: Records) -> dict[str, Any]:
    """Put rows that have both of their steps on record together: samples in a second over FP32's."""
    rows = []
    for row in _rows():
        fp32, low = (records.result(_name(row, row[key])) for key in ("fp32_batch", "low_batch"))
        if fp32 and low:
            more = row["low_batch"] / row["fp32_batch"]
            speedups = {name: more * fp32["fp32_us"] / low[f"{name}_us"] for name in PLANNED}
            facts = {key: fp32[key] for key in ("title", "size", "nodes", "fp32_us")}
            rows.append(
                {**row, **facts, "speedups": speedups, "fp32_alone": more * fp32["fp32_us"] / low["fp32_us"]}
            )
    off = [abs(math.log(row["speedups"][OPTIMAL] / row["published"])) for row in rows]
    return {
        "made": provenance(),
        "planned": PLANNED,
        "devices": {
            name: device_of(name)[0].hardware.title for name in dict.fromkeys(r["device"] for r in rows)
        },
        "rows": rows,
        "typical_factor": math.exp(sum(off) / len(off)) if off else None,
    }


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the page goes")
    add_arguments(parser, work="build/published")
    options = parser.parse_args()
    if not (options.report or options.plan or find_spec("torch")):
        parser.error("the networks are exported from PyTorch, which is not installed")
    call = call_of(options)

    def write(records: Records) -> tuple[Path, ...]:
        return publish("published", collect(records), options.out)

    return drive(steps_of(options.work), call, options, write)


if __name__ == "__main__":
    sys.exit(main())
