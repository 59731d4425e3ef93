"""Fifteen training steps beside torch, in FP32 and BF16, in turns: those that users train, with their update.

    python -m benchmarks.beside_torch [--rounds 9] [--visits 1] [--work DIR] [--limit-s 900] [--only STEP,...]

Each network is exported and optimized as the README writes it (``export_training_step``, ``campo-onnx
optimize --runtime openvino``), trained by a ``TrainingSession`` in FP32 on ONNX Runtime and on OpenVINO, in
BF16 on OpenVINO, and by ``torch.compile(backend="campo_onnx")``; beside it torch eager, torch autocast,
torch.compile and torch.compile under autocast, this one with a fused update, too. Each is a process of its
own, in the environment that users have, and stopped while another steps. Before, loss and every gradient of
ours are compared with torch in FP64.

The steps ``compiled_*`` fill the caches of torch's compiler (minutes each), ``ready_*`` export, compare and
fill ours (anew with each version of the source): what else runs then does not matter. The steps ``timed_*``
want a quiet machine with BF16 units, some ten minutes of it. Finished steps are kept: run it again, and it
goes on. Writes results/beside_torch.json and .md.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measured import NETWORKS
from benchmarks.measured.plans import FEEDS, folder_of
from benchmarks.measured.sides import THREADS, Worker
from benchmarks.measured.summary import ratios
from benchmarks.measured.training import FACTS, GIVEN, MIXED, MODULE, OF_TORCH, SIDES, Session, optimizer_of
from benchmarks.measured.turns import Effort, in_turns
from benchmarks.pages import RESULTS, arguments, publish
from benchmarks.steps import (
    Call,
    Facts,
    Records,
    Step,
    StepError,
    add_arguments,
    call_of,
    drive,
    in_own_process,
)
from campo_onnx.bench.statistics import median_interval
from campo_onnx.files import write_text
from campo_onnx.version import source_digest

STEPS = tuple(name for name in NETWORKS if name != "mlp")
"""The fifteen."""

_READY_S = 600.0
_PREPARED_S, _STARTS_S, _ROUND_S = 15.0, 20.0, 1.5  # expected, on two idle cores
_TURN_S = 0.15


def write_step(name: str, folder: Path) -> None:
    """Export a step, optimize it, and compare loss and gradients with torch's in FP64."""
    import torch
    from safetensors.numpy import save_file

    from benchmarks.measured.networks import case_of
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.export.torch.state_dict import first_state

    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # Masks of dropout differ from run to run: what is compared is the same step without it.
    cases = {"": case_of(name, keeps_dropout=True), "compared_": case_of(name)}
    predicted: dict[str, float] = {}
    for prefix, (module, loss, inputs, targets) in cases.items():
        path, mixed = folder / f"{prefix}{GIVEN}.onnx", folder / f"{prefix}{MIXED}.onnx"
        model = export_training_step(module, loss, inputs, targets, loss_scale=False, path=path)
        command = ["optimize", path, "-o", mixed, "--runtime", "openvino", "--force", "--json"]
        said = subprocess.run(
            [sys.executable, "-m", "campo_onnx", *map(str, command)],
            check=True,
            capture_output=True,
            text=True,
        )
        plan = json.loads(said.stdout)
        predicted = predicted or {key: plan[key] for key in ("fp32_us", "predicted_us")}
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    values = dict(zip(batch, (value.numpy() for value in (*inputs, *targets)), strict=True))
    feeds = {key: value.copy() for key, value in (first_state(module, model) | values).items()}
    save_file(feeds, folder / FEEDS)
    facts = {"optimizer": optimizer_of(name), "batch": batch, "predicted": predicted}
    facts["errors"] = errors_of(name, folder, feeds)
    write_text(json.dumps(facts, indent=1) + "\n", folder / FACTS)


def errors_of(name: str, folder: Path, feeds: Mapping[str, Any]) -> Facts:
    """Compare loss and every gradient, of the first batch and without dropout, with torch in FP64."""
    from benchmarks.measured.networks import case_of
    from campo_onnx.integrations.trial.sides import gradient_error
    from campo_onnx.integrations.trial.torch_steps import TorchStep
    from campo_onnx.ir.importer import import_model
    from campo_onnx.lowering.place import Place
    from campo_onnx.lowering.sequence import as_it_runs
    from campo_onnx.runtime.registry import load, machine

    module, loss, inputs, targets = case_of(name)
    wide = tuple(tuple(v.double() if v.is_floating_point() else v for v in of) for of in (inputs, targets))
    exact = TorchStep.of(module.double(), loss, wide)
    errors = {"fp64": exact.run(exact.module, autocasts=False)}
    expected = exact.gradients()
    torch_step = TorchStep.of(module.float(), loss, (inputs, targets))
    by_side = {}
    for side, autocasts in (("eager", False), ("eager-bf16", True)):
        value = torch_step.run(torch_step.module, autocasts=autocasts)
        by_side[side] = gradient_error(side, value, torch_step.gradients(), expected)
    for side, kind in SIDES.items():
        if isinstance(kind, Session):
            here = machine("cpu", 1, kind.runtime)
            graph = as_it_runs(import_model(folder / f"compared_{kind.graph}.onnx"), Place.on(here))
            results = load(graph.model, here).run({key: feeds[key] for key in graph.view.inputs})
            by_side[side] = gradient_error(side, float(results["loss"]), results, expected)
    return {"loss": errors["fp64"], "sides": {side: asdict(error) for side, error in by_side.items()}}


def run_once(name: str, graphs: Path, sides: Sequence[str]) -> Facts:
    """Let sides run their first steps, one after another, which fills the caches of their compilers."""
    failures = {}
    for side in sides:
        worker = Worker((side,), name, graphs, MODULE)
        try:
            if failure := worker.wait_until_ready(_READY_S)[side].get("failure"):
                failures[side] = failure
        except RuntimeError as error:
            failures[side] = str(error)
        finally:
            worker.end()
    return {"failures": failures}


def ready(name: str, graphs: Path) -> Facts:
    """Export, optimize and compare a network, and run our sides once."""
    folder = folder_of(name, graphs)
    in_own_process(write_step, name, folder)
    facts: Facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return facts | run_once(name, graphs, [side for side in SIDES if side not in OF_TORCH])


def steps_of(graphs: Path, rounds: int, visits: int) -> Iterator[Step]:
    """Torch's compilers, then our preparations, then the measurements, visit by visit."""
    effort = Effort(turn_s=_TURN_S, budget_s=60.0, rounds=rounds, ready_s=_READY_S)
    here = {"threads": THREADS, "sides": [*SIDES], "source": source_digest()}
    for name in STEPS:

        def compiled(call: Call, name: str = name) -> Facts:
            return run_once(name, graphs, [side for side in OF_TORCH if side.startswith("inductor")])

        yield Step(name=f"compiled_{name}", work=compiled, seconds=90.0)
    for name in STEPS:

        def prepared(call: Call, name: str = name) -> Facts:
            return ready(name, graphs)

        yield Step(name=f"ready_{name}", work=prepared, seconds=_PREPARED_S, asked=here)
    for visit in range(visits):
        for name in STEPS:

            def timed(call: Call, name: str = name) -> Facts:
                call.deadline.need(_STARTS_S)
                return in_turns(name, graphs, tuple(SIDES), effort, module=MODULE)

            asked = {**here, **effort._asdict()}
            needs = (f"compiled_{name}", f"ready_{name}")
            seconds = _STARTS_S + _ROUND_S * rounds
            yield Step(name=f"timed_{name}_{visit}", work=timed, seconds=seconds, asked=asked, needs=needs)


def row_of(name: str, prepared: Facts, visits: Sequence[Facts]) -> Facts:
    """Put together what is known of a network; rounds of all visits count alike."""
    rounds = {
        side: [ms for visit in visits for ms in visit["rounds_ms"].get(side, ())]
        for side in SIDES
        if all(visit["rounds_ms"].get(side) for visit in visits)
    }
    medians = {side: asdict(median_interval(times)) for side, times in rounds.items()}
    fastest = min((s for s in OF_TORCH if s in medians), key=lambda s: medians[s]["median"], default="")
    if not fastest or "bf16" not in rounds:
        raise StepError("; ".join(f"{s}: {why}" for visit in visits for s, why in visit["failures"].items()))
    others = [visit["others_running"] for visit in visits if visit["others_running"] is not None]
    return {
        "name": name,
        "title": NETWORKS[name],
        "optimizer": prepared["optimizer"],
        "predicted": prepared["predicted"],
        "errors": prepared["errors"],
        "ms": medians,
        "fastest": fastest,
        "bf16_over": ratios(rounds, dict.fromkeys(rounds, rounds["bf16"])),
        "fp32_over_eager": ratios({"fp32": rounds["eager"]}, rounds).get("fp32")
        if "fp32" in rounds
        else None,
        "failures": {side: why for visit in visits for side, why in visit["failures"].items()},
        "rounds": len(rounds["bf16"]),
        "others_running": fmean(others) if others else None,
        "times": [visit["measured_at"] for visit in visits],
    }


def verdicts(rows: Sequence[Facts]) -> Facts:
    """Count what is asked of the fifteen steps.

    Examples
    --------
    >>> def row(name, fastest, fp32, over_eager):
    ...     over = {side: {"median": x, "high": x} for side, x in (("eager", fastest), ("fp32", fp32))}
    ...     row = {"title": name, "fastest": "eager", "bf16_over": over}
    ...     return row | {"fp32_over_eager": {"median": over_eager}}
    >>> verdicts([row("a", 2.0, 1.5, 1.1), row("b", 0.5, 0.9, 0.8)])
    {'bf16_wins': 1, 'bf16_mean': 1.0, 'fp32_wins': 1, 'below_fp32': ['b']}
    """
    over = [row["bf16_over"][row["fastest"]]["median"] for row in rows]
    of_fp32 = [row["fp32_over_eager"] for row in rows]
    return {
        "bf16_wins": sum(ratio >= 1 for ratio in over),
        "bf16_mean": round(math.exp(fmean(map(math.log, over))), 6),
        "fp32_wins": sum(ratio is not None and ratio["median"] >= 1 for ratio in of_fp32),
        "below_fp32": [row["title"] for row in rows if row["bf16_over"].get("fp32", {"high": 1})["high"] < 1],
    }


def publish_measured(records: Records, visits: int, folder: Path) -> tuple[Path, ...]:
    """Write the page of the networks that were visited as often as is asked."""
    rows, missing, latest = [], [], None
    for name in STEPS:
        of_name = [facts["result"] for facts in records.all(f"timed_{name}_").values() if "result" in facts]
        prepared = records.result(f"ready_{name}")
        if prepared is None or len(of_name) < visits:
            missing.append(NETWORKS[name])
            continue
        try:
            rows.append(row_of(name, prepared, of_name))
            latest = of_name[-1]
        except StepError as error:
            missing.append(f"{NETWORKS[name]} ({error})")
    if latest is None:
        return ()
    data = {
        "made": latest["made"],
        "machine": latest["machine"],
        "threads": THREADS,
        "visits": visits,
        "sides": {side: kind.title for side, kind in SIDES.items()},
        "rows": rows,
        "verdicts": verdicts(rows),
        "missing": missing,
    }
    return publish("beside_torch", data, folder)


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    parser = arguments(__doc__)
    add_arguments(parser, work="build/beside_torch")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side; six are the fewest")
    parser.add_argument("--visits", type=int, default=1, help="how often each network is measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the page goes")
    parser.set_defaults(limit_s=900.0)
    options = parser.parse_args()
    work = options.work.resolve()
    call = call_of(options)
    # Caches of its own, which stay from the preparation until all is measured.
    os.environ |= {
        "XDG_CACHE_HOME": str(work / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
    }
    steps = [*steps_of(work / "graphs", options.rounds, options.visits)]
    return drive(
        steps, call, options, lambda records: publish_measured(records, options.visits, options.results)
    )


if __name__ == "__main__":
    sys.exit(main())
