"""Full-size training steps on PyTorch's own kernels: torch's ways to run them, and our plans, in turns.

    python -m benchmarks.on_torch FOLDER --prepare [--plan-for h200] [--small]
    python -m benchmarks.on_torch FOLDER [--limit-s 540] [--only NAME,...]

The first command exports and plans the steps, on any machine: files hold no weights. The second needs
PyTorch and this package alone, and a GPU, ten minutes of it. Each side is a process of its own; all of them
compile at once, and then take turns. Networks come in the order of what they are worth; finished ones are
kept, and the page is written after each: run it again, and it goes on. With ``--small`` narrow networks are
prepared for this machine's CPU: a rehearsal, which is no measurement and writes no page among the results.
Writes results/on_torch.json and .md.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measured.summary import ratios
from benchmarks.measured.turns import Effort, in_turns
from benchmarks.on_torch import NETWORKS, SETUP
from benchmarks.on_torch.sides import AHEAD, MODULE, OF_TORCH, SIDES, case_of, sides_on
from benchmarks.pages import RESULTS, arguments, publish
from benchmarks.steps import Call, Facts, Records, Step, add_arguments, call_of, drive
from campo_onnx.bench.statistics import median_interval
from campo_onnx.errors import UsageError
from campo_onnx.files import write_text
from campo_onnx.runtime.gpu import visible_gpu
from campo_onnx.runtime.machine import cpu_name

_OURS = ("optimal", "optimal-graphs")
_EFFORT = Effort(turn_s=0.3, budget_s=12.0, rounds=20, ready_s=150.0)
_COMPILES_S = 40.0


def prepare(folder: Path, device: str, *, is_small: bool) -> None:
    """Export every network's step, and plan it for a device with the runtime ``torch``."""
    import torch

    from campo_onnx import Options, Precision, export_model, oplists, optimize_model
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.targets.detect import resolve_target

    target, _ = resolve_target(device, "torch")
    for name, network in NETWORKS.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        with torch.device("cpu" if is_small else "meta"):
            module, loss, inputs, targets = case_of(name, is_small=is_small)
        path = place / "fp32.onnx"
        export_training_step(module, loss, inputs, targets, loss_scale=False, path=path)
        options = Options(target=target, lists=oplists("campo"), low=Precision.BF16)
        planned = optimize_model(path, options)
        export_model(planned.model, place / "optimal.onnx")
        print(f"{network.title}: predicted {planned.plan.speedup:.2f} times as fast as FP32", flush=True)
    setup = {"device": "cpu" if is_small else "cuda", "planned_for": target.name, "is_small": is_small}
    write_text(json.dumps(setup) + "\n", folder / SETUP)


def steps_of(folder: Path, device: str) -> Iterator[Step]:
    """Give a step for each network."""
    for name in NETWORKS:

        def timed(call: Call, name: str = name) -> Facts:
            call.deadline.need(_COMPILES_S)
            return in_turns(name, folder, sides_on(device, name), _EFFORT, module=MODULE)

        yield Step(name=name, work=timed, seconds=_COMPILES_S + _EFFORT.budget_s)


def row_of(name: str, timed: Facts) -> Facts:
    """Put together the figures of a network."""
    rounds = {side: [ms / AHEAD for ms in times] for side, times in timed["rounds_ms"].items() if times}
    ms = {side: asdict(median_interval(times)) for side, times in rounds.items()}
    medians = {side: time["median"] for side, time in ms.items()}
    best, ours = (
        min((side for side in group if side in medians), key=lambda side: medians[side], default="")
        for group in (OF_TORCH, _OURS)
    )
    over: Mapping[str, Any] = ratios({best: rounds[best]}, {best: rounds[ours]}) if best and ours else {}
    return {
        "title": NETWORKS[name].title,
        "ms": ms,
        "best": best,
        "ours": ours,
        "over_best": over.get(best),
        "failures": timed["failures"],
        "losses": timed["losses"],
    }


def machine_of(device: str) -> Facts:
    """Name the processor, and a GPU's driver."""
    if device != "cuda":
        return {"device": cpu_name()}
    gpu = visible_gpu().gpu
    return {"device": "an NVIDIA GPU" if gpu is None else f"{gpu.name}, driver {gpu.driver}"}


def publish_rows(records: Records, setup: Facts, folder: Path) -> tuple[Path, ...]:
    """Write the page of what is measured so far."""
    done = {name: result for name in NETWORKS if (result := records.result(name)) is not None}
    if not done:
        return ()
    rows = [row_of(name, timed) for name, timed in done.items()]
    over = [row["over_best"]["median"] for row in rows if row["over_best"]]
    latest = [*done.values()][-1]
    data = {
        "made": latest["made"],
        "machine": machine_of(setup["device"]),
        "setup": setup,
        "sides": {side: kind.title for side, kind in SIDES.items() if any(side in row["ms"] for row in rows)},
        "rows": rows,
        "mean": math.exp(fmean(map(math.log, over))) if over else None,
        "missing": [network.title for name, network in NETWORKS.items() if name not in done],
    }
    return publish("on_torch", data, folder)


def main() -> int:
    """Prepare, or measure what is not measured yet."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="where prepared steps and finished measurements are kept")
    parser.add_argument("--prepare", action="store_true", help="export and plan, measure nothing")
    parser.add_argument("--plan-for", default="h200", metavar="DEVICE", help="the device of the plans")
    parser.add_argument("--small", action="store_true", help="with --prepare: narrow networks, for this CPU")
    parser.add_argument("--results", type=Path, help="where the page goes")
    add_arguments(parser, work="unused")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.prepare:
        prepare(folder, "auto" if options.small else options.plan_for, is_small=options.small)
        return 0
    if not (folder / SETUP).is_file():
        raise UsageError(f"{folder} holds no prepared steps", remedy="Prepare them first, with --prepare.")
    setup: Facts = json.loads((folder / SETUP).read_text(encoding="utf-8"))
    results = options.results or (folder if setup["is_small"] else RESULTS)
    call = call_of(options, folder / "records")
    steps = [*steps_of(folder, setup["device"])]
    return drive(steps, call, options, lambda records: publish_rows(records, setup, results))


if __name__ == "__main__":
    sys.exit(main())
