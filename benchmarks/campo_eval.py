"""The Campo paper's evaluation (section 7, Figures 4 to 10) on the zoo's six models, with every strategy.

    python -m benchmarks.campo_eval [--device cpu|cuda] [--variants small|full] [--work DIR] ...

It exports the models, so it needs PyTorch: ``make campo-eval`` makes an environment and runs it. Steps that
are done are kept below ``--work``: run the same command again until it says that all is done. ``--plan``
shows the steps; ``--report`` only writes the page anew, from what is there. Records of another machine may
be copied into ``DIR/records``. Results: results/campo_eval.json, .md and campo_eval_*.svg.

Predictions are for the models at the paper's sizes, for any device and without one. What is stepped is
the variants: ``full``, or ``small``, which a CPU steps in tens of milliseconds.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.evaluation.collect import DEVICES, collect, draw
from benchmarks.evaluation.converted import examine
from benchmarks.evaluation.node_times import CAST, cast_times, node_times
from benchmarks.evaluation.peers import CONVERT_S, INSTALL_S, PEERS, Peer, convert, install
from benchmarks.evaluation.predicted import predict
from benchmarks.evaluation.stepped import (
    Candidate,
    Effort,
    candidates,
    groups,
    measure,
    peer_candidate,
    update_errors,
)
from benchmarks.evaluation.strategies import STRATEGIES
from benchmarks.evaluation.update_error import SCALES
from benchmarks.pages import RESULTS, publish
from benchmarks.steps import Call, Records, Step, add_arguments, call_of, drive
from benchmarks.zoo import NOT_ON_RTX2080TI, TITLES
from campo_onnx import CampoError, device
from campo_onnx.devices.detect import device_of
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.runtime.providers import Machine, choose_provider, machine

FULL, FULL_2080TI, SMALL = "full", "full-rtx2080ti", "small"
LEAST_LIMIT_S = max(INSTALL_S, CONVERT_S) + 30


def variant_for(device_name: str) -> str:
    """The full variant whose batch sizes fit a device: the paper's own, the V100's for any other."""
    return FULL_2080TI if device_name == "rtx2080ti" else FULL


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is asked for, and where things lie."""

    work: Path
    machine: Machine
    planned_for: str
    variant: str
    models: tuple[str, ...]
    strategies: tuple[str, ...]
    peers: tuple[Peer, ...]
    devices: tuple[str, ...]
    together: int
    effort: Effort

    def graph(self, model: str, variant: str) -> Path:
        """Where an exported graph lies."""
        return self.work / "graphs" / f"{model}-{variant}.onnx"

    def output(self, peer: str, model: str, variant: str) -> Path:
        """Where what a peer made of a graph lies."""
        return self.work / "converted" / f"{peer}-{model}-{variant}.onnx"

    @property
    def peers_home(self) -> Path:
        """Where the peers' environments lie."""
        return self.work / "peers"


def steps_of(asked: Evaluation, records: Records) -> Iterator[Step]:
    """All steps; which peers' graphs are stepped is known when they were converted."""
    variants = dict.fromkeys([asked.variant, FULL, *map(variant_for, asked.devices)])
    for variant in variants:
        for model in _models(asked, variant):
            yield Step(
                name=f"graph-{model}-{variant}",
                work=partial(_export, asked.graph(model, variant), model, variant),
                seconds=10,
                asked={"model": model},
            )
    for name in asked.devices:
        for model in _models(asked, variant_for(name)):
            yield Step(
                name=f"predicted-{name}-{model}",
                work=partial(_predict, asked, name, model),
                seconds=15,
                asked={"strategies": asked.strategies},
                needs=(f"graph-{model}-{variant_for(name)}",),
            )
    yield from _conversions(asked)
    yield from _measurements(asked, records)


def _models(asked: Evaluation, variant: str) -> list[str]:
    return [model for model in asked.models if variant != FULL_2080TI or model not in NOT_ON_RTX2080TI]


def _export(path: Path, model: str, variant: str, call: Call) -> Any:
    from benchmarks.zoo.variants import export_variant

    return export_variant(model, variant, path)


def _predict(asked: Evaluation, name: str, model: str, call: Call) -> Any:
    return predict(asked.graph(model, variant_for(name)), name, asked.strategies)


def _conversions(asked: Evaluation) -> Iterator[Step]:
    for peer in asked.peers:

        def set_up(call: Call, peer: Peer = peer) -> str:
            call.deadline.need(INSTALL_S)
            install(peer, asked.peers_home)
            return "installed"

        requirements = {"requirements": peer.requirements}
        yield Step(name=f"install-{peer.name}", work=set_up, seconds=60, asked=requirements)
        for variant in dict.fromkeys([asked.variant, FULL]):
            for model in asked.models:
                yield Step(
                    name=f"peer-{peer.name}-{model}-{variant}",
                    work=partial(_convert, asked, peer, model, variant),
                    seconds=40,
                    asked={
                        "peer": peer.name,
                        "model": model,
                        "program": peer.program,
                        "devices": asked.devices,
                    },
                    needs=(f"install-{peer.name}", f"graph-{model}-{variant}"),
                )


def _convert(asked: Evaluation, peer: Peer, model: str, variant: str, call: Call) -> Any:
    call.deadline.need(CONVERT_S)
    graph, output = asked.graph(model, variant), asked.output(peer.name, model, variant)
    convert(peer, graph, output, asked.peers_home)
    devices = [name for name in asked.devices if variant_for(name) == FULL]
    return examine(graph, output, devices)


def _measurements(asked: Evaluation, records: Records) -> Iterator[Step]:
    here = asked.machine
    for model in asked.models:
        graph = f"graph-{model}-{asked.variant}"
        peers = [peer.name for peer in asked.peers if _can_be_stepped(asked, records, peer.name, model)]
        facts = {"model": model, "variant": asked.variant, "planned_for": asked.planned_for}
        facts |= {"threads": here.threads}
        for position, labels in enumerate(groups([*asked.strategies, *peers], asked.together)):
            yield Step(
                name=f"measured-{here.provider}-{model}-{position}",
                work=partial(_measure, asked, model, labels),
                seconds=asked.effort.budget_s + 15,
                asked={**facts, "effort": asdict(asked.effort), "labels": labels},
                needs=(graph,),
            )
        if asked.variant == SMALL:
            labels = (*asked.strategies, *peers)
            yield Step(
                name=f"update-{model}",
                work=partial(_update, asked, model, labels),
                seconds=15,
                asked={"labels": labels, "planned_for": asked.planned_for, "scales": SCALES},
                needs=(graph,),
            )
    for of in (CAST, *asked.models):
        model = asked.models[0] if of == CAST else of
        yield Step(
            name=f"nodes-{here.provider}-{of}",
            work=partial(_time_nodes, asked, of, model),
            seconds=60,
            asked={"of": of, "variant": asked.variant, "threads": here.threads},
            needs=(f"graph-{model}-{asked.variant}",),
        )


def _measure(asked: Evaluation, model: str, labels: tuple[str, ...], call: Call) -> Any:
    batch = call.result(f"graph-{model}-{asked.variant}")["batch"]
    return measure(_members(asked, model, labels), asked.machine, asked.effort, batch, call.deadline)


def _update(asked: Evaluation, model: str, labels: tuple[str, ...], call: Call) -> Any:
    return update_errors(import_model(asked.graph(model, SMALL)), _members(asked, model, labels))


def _time_nodes(asked: Evaluation, of: str, model: str, call: Call) -> Any:
    take = cast_times if of == CAST else node_times
    with Store(asked.work / "timings.sqlite") as store:
        bench = NodeTimer(machine=asked.machine, store=store)
        graph = asked.graph(model, asked.variant)
        times = take(graph, device_of(asked.machine), bench, call.deadline.tick)
    return [asdict(time) for time in times]


def _can_be_stepped(asked: Evaluation, records: Records, peer: str, model: str) -> bool:
    found = records.result(f"peer-{peer}-{model}-{asked.variant}")
    return found is not None and not found["unreadable"] and found["interface_kept"]


def _members(asked: Evaluation, model: str, labels: tuple[str, ...]) -> list[Candidate]:
    strategies = [label for label in labels if label in STRATEGIES]
    ours = candidates(asked.graph(model, asked.variant), device(asked.planned_for), strategies)
    peers = [label for label in labels if label in PEERS]
    return [*ours, *(peer_candidate(name, asked.output(name, model, asked.variant)) for name in peers)]


def evaluation_of(options: argparse.Namespace) -> Evaluation:
    """Put together what the command line asks for."""
    here = machine(choose_provider(options.device), options.threads)
    on_gpu = here.provider == "cuda"
    for name in ("graphs", "converted", "peers"):
        (options.work / name).mkdir(parents=True, exist_ok=True)
    return Evaluation(
        work=options.work,
        machine=here,
        planned_for=options.plan_for or (device_of(here).name if on_gpu else "v100"),
        variant=options.variants or (FULL if on_gpu else SMALL),
        models=tuple(options.models),
        strategies=tuple(label for label in STRATEGIES if label in {"fp32", *options.strategies}),
        peers=tuple(PEERS.values()) if options.peers else (),
        devices=tuple(options.predict_for),
        together=options.together if options.together is not None else (3 if on_gpu else 0),
        effort=Effort(steps=options.steps, budget_s=options.seconds),
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where graphs are stepped")
    add("--variants", choices=(SMALL, FULL), help="what is stepped; small on a CPU, full on a GPU")
    add("--models", nargs="+", choices=[*TITLES], default=[*TITLES])
    add("--strategies", nargs="+", choices=[*STRATEGIES], default=[*STRATEGIES])
    add("--peers", action=argparse.BooleanOptionalAction, default=True, help="other converters as well")
    add("--predict-for", nargs="+", choices=DEVICES, default=DEVICES, help="devices of the predictions")
    add("--plan-for", help="device that stepped graphs are planned for; on a CPU the V100")
    add("--together", type=int, help="graphs measured in turns, 0 for all; on a GPU 3, for its memory")
    add("--steps", type=int, default=50, help="measured steps of every graph")
    add("--seconds", type=float, default=60.0, help="time after which a measurement ends earlier")
    add("--threads", type=int, default=0, help="threads of a CPU; 0 for all cores")
    add("--out", type=Path, default=RESULTS, help="where the page and pictures go")
    add_arguments(parser, work="eval_out")
    return parser


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = arguments()
    options = parser.parse_args()
    if options.limit_s < LEAST_LIMIT_S and options.peers:
        parser.error(f"with peers a call takes at least --limit-s {LEAST_LIMIT_S:.0f}")
    try:
        asked = evaluation_of(options)
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    call = call_of(options)

    def write(records: Records) -> tuple[Path, ...]:
        data = collect(records)
        options.out.mkdir(parents=True, exist_ok=True)
        return (*publish("campo_eval", data, options.out), *draw(data, options.out))

    return drive(steps_of(asked, call.records), call, options, write)


if __name__ == "__main__":
    sys.exit(main())
