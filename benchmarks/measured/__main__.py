"""BF16 measured on this machine: torch's steps and ours, in turns.

    python -m benchmarks.measured [--quick] [--work DIR] [--limit-s 540] [--costs auto] [--only '*_unet*']

Every network's step (loss and gradients) is run by torch eager, torch autocast, torch.compile with and
without autocast, and by us: FP32 on ONNX Runtime and on OpenVINO, and on OpenVINO the BF16 plans of an op
list, of Campo's traverses and of the exact optimum. Each is a process of its own; they take turns, a few
steps each, in rotating order. Medians of the ratios by round, with 95 % intervals. Needs a CPU with BF16
units, OpenVINO, PyTorch and transformers. Run it on a quiet machine, again until it says that all is
done. ``--quick`` measures five networks in a quarter of an hour. Writes results/measured.json and .md.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measured.sides import PLANS, SIDES, THREADS, Worker
from benchmarks.pages import arguments, made, publish
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
from campo_onnx.bench.statistics import median_interval, paired_speedup

STEPS = 4
ROUNDS, QUICK_ROUNDS = 25, 12
_EXPORT_S, _PLAN_S, _START_S, _STEP_S = 20, 30, 90, 0.12
_LOSS_TOLERANCE = 1e-3  # FP32 sides compute one loss, in other orders
_LOADED = 0.5  # processes beside ours that want a core


def export(name: str, folder: Path) -> Facts:
    """Write a network's step in FP32, from standard operators."""
    from benchmarks.measured.networks import case_of
    from campo_onnx.export.torch import export_training_step

    module, loss, inputs, targets = case_of(name)
    path = folder / f"{name}.fp32.onnx"
    model = export_training_step(
        module, loss, inputs, targets, loss_scale=False, target="standard", device="cpu", path=path
    )
    return {"nodes": len(model.graph.node)}


def plan(name: str, folder: Path, costs: str) -> Facts:
    """Write every plan of a step for OpenVINO on this CPU."""
    from campo_onnx import Options, Precision, export_model, oplists, optimize_model
    from campo_onnx.costs.evidence import CostSource
    from campo_onnx.hardware.detect import resolve_device
    from campo_onnx.optimize.strategies import strategy_called

    device, note = resolve_device("auto", "openvino")
    facts: Facts = {"device": device.name, "note": note}
    for strategy in PLANS:
        options = Options(
            device=device,
            lists=oplists(strategy_called(strategy).default_lists),
            strategy=strategy,
            low=Precision.BF16,
            costs=CostSource(costs),
        )
        result = optimize_model(folder / f"{name}.fp32.onnx", options)
        export_model(result.model, folder / f"{name}.{strategy}.onnx")
        facts[strategy] = {
            "low": len(result.plan.low_nodes),
            "casts": len(result.plan.casts),
            "fp32_us": result.plan.fp32_us,
            "predicted_us": result.plan.predicted_us,
            "costs": result.plan.source,
        }
    return facts


def in_turns(name: str, folder: Path, rounds: int) -> Facts:
    """Time all sides, some steps each, in an order that rotates."""
    workers: dict[str, Worker] = {}
    failures: dict[str, str] = {}
    try:
        for side in SIDES:  # one after another: two that compile at once would take turns themselves
            worker = Worker(side, name, folder)
            try:
                worker.wait_until_ready()
                workers[side] = worker
            except RuntimeError as error:
                failures[side] = str(error)
                worker.end()
        load_before = os.getloadavg()[0]
        times_ms: dict[str, list[float]] = {side: [] for side in workers}
        order = list(workers)
        for number in range(rounds):
            first = number % len(order)
            for side in order[first:] + order[:first]:
                steps = workers[side].times_ms(STEPS)
                times_ms[side].append(sum(steps) / len(steps))
    finally:
        for worker in workers.values():
            worker.end()
    losses = {side: worker.facts["loss"] for side, worker in workers.items()}
    refuse_other_losses(losses)
    return {
        "failures": failures,
        "losses": losses,
        "ready_s": {side: worker.facts["ready_s"] for side, worker in workers.items()},
        "load": [load_before, os.getloadavg()[0]],
        "rounds_ms": times_ms,
    }


def refuse_other_losses(losses: Mapping[str, float]) -> None:
    """Refuse sides in FP32 that do not compute torch's loss: they would not run the same step."""
    expected = losses.get("torch")
    for side in ("compile", "ort", "fp32"):
        if expected and side in losses and abs(losses[side] - expected) > _LOSS_TOLERANCE * abs(expected):
            raise StepError(f"the loss of {side} is {losses[side]:.6g}, and torch's {expected:.6g}")


def steps_of(folder: Path, names: tuple[str, ...], rounds: int, costs: str) -> Iterator[Step]:
    """An export, plans and measurements for each network."""
    for name in names:

        def exported(call: Call, name: str = name) -> Facts:
            return in_own_process(export, name, folder)

        def planned(call: Call, name: str = name) -> Facts:
            return in_own_process(plan, name, folder, costs)

        def timed(call: Call, name: str = name) -> Facts:
            return in_turns(name, folder, rounds)

        seconds = _START_S + rounds * len(SIDES) * (STEPS + 1) * _STEP_S
        yield Step(name=f"export_{name}", work=exported, seconds=_EXPORT_S)
        yield Step(
            name=f"plan_{name}",
            work=planned,
            seconds=_PLAN_S,
            asked={"costs": costs},
            needs=(f"export_{name}",),
        )
        yield Step(
            name=f"timed_{name}",
            work=timed,
            seconds=seconds,
            asked={"rounds": rounds, "steps": STEPS, "threads": THREADS},
            needs=(f"plan_{name}",),
        )


def row_of(timed: Facts) -> Facts:
    """Medians by side, and by how much each side is faster than others, by round."""
    rounds: Mapping[str, list[float]] = timed["rounds_ms"]
    fp32, optimal = rounds.get("fp32"), rounds.get("optimal")

    def ratios(first: list[float] | None) -> dict[str, Any]:
        pairs = {side: paired_speedup(first, times) if first else None for side, times in rounds.items()}
        return {side: asdict(ratio) for side, ratio in pairs.items() if ratio is not None}

    over_fp32 = ratios(fp32)
    beside = {side: paired_speedup(times, optimal) if optimal else None for side, times in rounds.items()}
    return {
        "ms": {side: asdict(median_interval(times)) for side, times in rounds.items()},
        "over_fp32": over_fp32,
        "optimal_over": {side: asdict(ratio) for side, ratio in beside.items() if ratio is not None},
        "losses": timed["losses"],
        "load": timed["load"],
        "failures": timed["failures"],
    }


def machine_facts() -> Facts:
    """Describe the machine: processor, units, governor."""
    from campo_onnx.runtime.machine import cpu_name
    from campo_onnx.runtime.openvino.installed import openvino

    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    units = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "units": [unit for unit in units if unit in ("FP32", "BF16", "FP16", "INT8")],
        "governor": governor.read_text(encoding="ascii").strip() if governor.is_file() else "not told",
    }


def publish_measured(records: Records) -> tuple[Path, ...]:
    """Write the page of the networks that were measured."""
    from benchmarks.measured.networks import NETWORKS

    rows = []
    for name in NETWORKS:
        timed, planned = records.result(f"timed_{name}"), records.result(f"plan_{name}")
        if timed is not None and planned is not None:
            rows.append({"name": name, "title": NETWORKS[name], "plans": planned, **row_of(timed)})
    if not rows:
        return ()
    facts = {
        "machine": machine_facts(),
        "threads": THREADS,
        "steps": STEPS,
        "sides": {side: kind.title for side, kind in SIDES.items()},
        "loaded": [row["title"] for row in rows if max(row["load"]) > THREADS + _LOADED],
        "rows": rows,
    }
    return publish("measured", {"made": made("torch", "openvino", "transformers"), **facts})


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    parser = arguments(__doc__)
    add_arguments(parser, work="build/measured")
    parser.add_argument("--quick", action="store_true", help="five networks, fewer rounds")
    parser.add_argument("--costs", default="auto", help="where costs of plans come from, as of optimize")
    options = parser.parse_args()
    from benchmarks.measured.networks import NETWORKS, QUICK

    call = call_of(options)
    names = QUICK if options.quick else tuple(NETWORKS)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    steps = list(steps_of(call.records.folder, names, rounds, options.costs))
    return drive(steps, call, options, publish_measured)


if __name__ == "__main__":
    sys.exit(main())
