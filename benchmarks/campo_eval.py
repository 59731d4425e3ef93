"""The Campo paper's evaluation (section 7, Figures 4 to 10) on the zoo's six models, with every strategy.

    python -m benchmarks.campo_eval [--device cpu|cuda] [--variants small|full] [--work DIR] ...

It exports the models, so it needs PyTorch: ``make campo-eval`` makes an environment and runs it. Steps that
are done are kept below ``--work``: run the same command again until it says that all is done. ``--plan``
shows the steps, ``--only`` chooses among them (``--only '*-vgg16*'``); ``--report`` only writes the page
anew, from what is there. Records of another machine may be copied into ``DIR/records``. Results:
results/campo_eval.json, .md and campo_eval_*.svg.

Predictions are for the models at the paper's sizes, for any device and without one. What is stepped is
the variants: ``full``, or ``small``, which a CPU steps in tens of milliseconds.
"""

import argparse
import json
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
from benchmarks.evaluation.stepped import Candidate, Effort, candidates, groups, measure, peer_candidate
from benchmarks.evaluation.strategies import STRATEGIES
from benchmarks.pages import RESULTS, arguments, publish
from benchmarks.steps import Call, Records, Step, add_arguments, call_of, drive
from benchmarks.zoo import NOT_ON_RTX2080TI, TITLES
from campo_onnx import CampoError, target
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import machine, processor_for
from campo_onnx.targets.detect import target_of

FULL, FULL_2080TI, SMALL = "full", "full-rtx2080ti", "small"
EFFORT = Effort(steps=50, budget_s=60.0)
LEAST_LIMIT_S = max(INSTALL_S, CONVERT_S) + 30


def variant_for(device_name: str) -> str:
    """The full variant whose batch sizes fit a device: the paper's own, the V100's for any other."""
    return FULL_2080TI if device_name == "rtx2080ti" else FULL


def models_of(variant: str) -> list[str]:
    return [model for model in TITLES if variant != FULL_2080TI or model not in NOT_ON_RTX2080TI]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Options of the evaluation, and where its files lie."""

    work: Path
    machine: Machine
    planned_for: str
    variant: str  # that is stepped
    together: int  # graphs measured in turns, 0 for all

    def graph(self, model: str, variant: str) -> Path:
        """Where an exported graph lies."""
        return self.work / "graphs" / f"{model}-{variant}.onnx"

    def output(self, peer: str, model: str, variant: str) -> Path:
        """Path of the graph that a peer converted."""
        return self.work / "converted" / f"{peer}-{model}-{variant}.onnx"

    def members(self, model: str, labels: tuple[str, ...]) -> list[Candidate]:
        """Graphs of strategies and of peers."""
        planned = [label for label in labels if label in STRATEGIES]
        ours = candidates(self.graph(model, self.variant), target(self.planned_for), planned)
        peers = [label for label in labels if label in PEERS]
        return [*ours, *(peer_candidate(name, self.output(name, model, self.variant)) for name in peers)]


def steps_of(asked: Evaluation, records: Records) -> Iterator[Step]:
    """All steps; which peers' graphs are stepped is known when they were converted."""
    for variant in dict.fromkeys([asked.variant, FULL, *map(variant_for, DEVICES)]):
        for model in models_of(variant):
            export = partial(_export, asked.graph(model, variant), model, variant)
            yield Step(name=f"graph-{model}-{variant}", work=export, seconds=10, asked={"model": model})
    for name in DEVICES:
        for model in models_of(variant_for(name)):
            yield Step(
                name=f"predicted-{name}-{model}",
                work=partial(_predict, asked.graph(model, variant_for(name)), name),
                seconds=15,
                asked={"strategies": [*STRATEGIES]},
                needs=(f"graph-{model}-{variant_for(name)}",),
            )
    for peer in PEERS.values():
        yield from _conversions(asked, peer)
    for model in TITLES:
        yield from _measurements(asked, model, records)
    for of in (CAST, *TITLES):
        model = next(iter(TITLES)) if of == CAST else of
        yield Step(
            name=f"nodes-{asked.machine.provider}-{of}",
            work=partial(_time_nodes, asked, of, model),
            seconds=60,
            asked={"of": of, "variant": asked.variant, "threads": asked.machine.threads},
            needs=(f"graph-{model}-{asked.variant}",),
        )


def _export(path: Path, model: str, variant: str, call: Call) -> Any:
    from benchmarks.zoo.variants import export_variant

    return export_variant(model, variant, path)


def _predict(graph: Path, name: str, call: Call) -> Any:
    return predict(graph, name, STRATEGIES)


def _conversions(asked: Evaluation, peer: Peer) -> Iterator[Step]:
    set_up, requirements = partial(_install, peer, asked.work / "peers"), {"requirements": peer.requirements}
    yield Step(name=f"install-{peer.name}", work=set_up, seconds=60, asked=requirements)
    for variant in dict.fromkeys([asked.variant, FULL]):
        for model in TITLES:
            yield Step(
                name=f"peer-{peer.name}-{model}-{variant}",
                work=partial(_convert, asked, peer, model, variant),
                seconds=40,
                asked={"peer": peer.name, "model": model, "program": peer.program, "devices": DEVICES},
                needs=(f"install-{peer.name}", f"graph-{model}-{variant}"),
            )


def _install(peer: Peer, home: Path, call: Call) -> str:
    call.deadline.need(INSTALL_S)
    install(peer, home)
    return "installed"


def _convert(asked: Evaluation, peer: Peer, model: str, variant: str, call: Call) -> Any:
    call.deadline.need(CONVERT_S)
    graph, output = asked.graph(model, variant), asked.output(peer.name, model, variant)
    convert(peer, graph, output, asked.work / "peers")
    return examine(graph, output, [name for name in DEVICES if variant_for(name) == FULL])


def _measurements(asked: Evaluation, model: str, records: Records) -> Iterator[Step]:
    here, graph = asked.machine, f"graph-{model}-{asked.variant}"
    labels = [*STRATEGIES]
    for peer in PEERS:
        conversion = records.result(f"peer-{peer}-{model}-{asked.variant}")
        if conversion is not None and not conversion["unreadable"] and conversion["interface_kept"]:
            labels.append(peer)
    facts = {"model": model, "variant": asked.variant, "threads": here.threads, "effort": asdict(EFFORT)}
    for position, group in enumerate(groups(labels, asked.together)):
        yield Step(
            name=f"measured-{here.provider}-{model}-{position}",
            work=partial(_measure, asked, model, group),
            seconds=EFFORT.budget_s + 15,
            asked={**facts, "planned_for": asked.planned_for, "labels": group},
            needs=(graph,),
        )


def _measure(asked: Evaluation, model: str, labels: tuple[str, ...], call: Call) -> Any:
    batch = call.result(f"graph-{model}-{asked.variant}")["batch"]
    return measure(asked.members(model, labels), asked.machine, EFFORT, batch, call.deadline)


def _time_nodes(asked: Evaluation, of: str, model: str, call: Call) -> Any:
    with Store(asked.work / "timings.sqlite") as store:
        bench = NodeTimer(machine=asked.machine, store=store)
        graph, on = asked.graph(model, asked.variant), target_of(asked.machine)
        return (cast_times if of == CAST else node_times)(graph, on, bench, call.deadline.tick)


def evaluation_of(options: argparse.Namespace) -> Evaluation:
    """Put together what the command line asks for."""
    here = machine(processor_for(options.device), options.threads)
    on_gpu = here.provider == "cuda"
    for name in ("graphs", "converted", "peers"):
        (options.work / name).mkdir(parents=True, exist_ok=True)
    return Evaluation(
        work=options.work,
        machine=here,
        planned_for=target_of(here).name if on_gpu else "v100",
        variant=options.variants or (FULL if on_gpu else SMALL),
        together=3 if on_gpu else 0,  # for its memory
    )


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where graphs are stepped")
    add("--variants", choices=(SMALL, FULL), help="what is stepped; small on a CPU, full on a GPU")
    add("--threads", type=int, default=0, help="threads of a CPU; 0 for all cores")
    add("--out", type=Path, default=RESULTS, help="where the page and pictures go")
    add_arguments(parser, work="eval_out")
    return parser


def with_published(data: dict[str, Any], page: Path) -> dict[str, Any]:
    """Keep what was measured and converted before, dated, where nothing newer is on record."""
    if not page.exists():
        return data
    published = json.loads(page.read_text(encoding="utf-8"))
    provenance = published["made"]
    measured = {
        provider: {"of": provenance["versions"]} | facts for provider, facts in published["measured"].items()
    }
    peers = {"peers_of": provenance} | {key: published[key] for key in published if key.startswith("peer")}
    return data | {"measured": measured | data["measured"]} | ({} if data["peers"] else peers)


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = command_line()
    options = parser.parse_args()
    if options.limit_s < LEAST_LIMIT_S:
        parser.error(f"a call takes at least --limit-s {LEAST_LIMIT_S:.0f}: other converters are installed")
    try:
        asked = evaluation_of(options)
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    call = call_of(options)

    def write(records: Records) -> tuple[Path, ...]:
        options.out.mkdir(parents=True, exist_ok=True)
        data = with_published(collect(records), options.out / "campo_eval.json")
        return (*publish("campo_eval", data, options.out), *draw(data, options.out))

    return drive(steps_of(asked, call.records), call, options, write)


if __name__ == "__main__":
    sys.exit(main())
