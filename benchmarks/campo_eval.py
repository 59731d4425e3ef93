"""The Campo paper's evaluation (section 7, Figures 4 to 10) on the zoo's six models, with every strategy.

    python benchmarks/campo_eval.py [--device cpu|cuda] [--variants small|full] [--work DIR] ...

It exports the models, so it needs PyTorch: ``make test-frameworks`` makes an environment, of which
``.venv-frameworks/bin/python`` runs it; ``pip install matplotlib`` there for the pictures. Steps that
are done are kept below ``--work`` and not repeated: run the same command again until it says that all
is done. A step that failed is tried again when its file in ``DIR/records`` is deleted. ``--report``
only writes the page anew, from what is there; records of another machine may be copied into
``DIR/records``. Results: results/campo_eval.md and results/campo_eval_*.svg.

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

from evaluation.converted import Converted, judge
from evaluation.figures import can_draw
from evaluation.findings import DEVICES, read_findings
from evaluation.measured import Effort, Entrant, entrants, groups, measure, peer_entrant, update_errors
from evaluation.models import FULL, SMALL, TITLES, export, variant_for
from evaluation.node_times import CAST, cast_times, node_times
from evaluation.numerics import SCALES
from evaluation.peers import CONVERT_S, INSTALL_S, PEERS, RUNNERS, Peer, convert, install
from evaluation.pictures import draw
from evaluation.predicted import predict
from evaluation.report import page
from evaluation.steps import Deadline, Facts, Records, Step, run_steps
from evaluation.strategies import STRATEGIES

from campo_onnx.devices.datasheet import device
from campo_onnx.devices.detect import device_of
from campo_onnx.errors import CampoError
from campo_onnx.files import write_text
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import Bench
from campo_onnx.measure.store import Store
from campo_onnx.runtime.providers import Machine, choose_provider, machine

RESULTS = Path(__file__).parent / "results"
LEAST_LIMIT_S = max(INSTALL_S, CONVERT_S) + 30
TO_BE_CONTINUED = 75  # EX_TEMPFAIL: run it again


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call: what is asked, where things lie, and when it ends."""

    work: Path
    records: Records
    deadline: Deadline
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

    def converted(self, peer: str, model: str) -> Path:
        """Where what a peer made of the variant that is stepped lies."""
        return self.output(peer, model, self.variant)

    def output(self, peer: str, model: str, variant: str) -> Path:
        """Where what a peer made of a graph lies."""
        return self.work / "converted" / f"{peer}-{model}-{variant}.onnx"

    def exported(self, model: str, variant: str) -> Facts | None:
        """What is on record about an exported graph."""
        return self.records.result(f"graph-{model}-{variant}")


def steps_of(session: Session) -> Iterator[Step]:
    """All steps, each found out about when the ones before it are done."""
    yield from _exports(session)
    yield from _predictions(session)
    yield from _conversions(session)
    yield from _measurements(session)


def _exports(session: Session) -> Iterator[Step]:
    variants = {session.variant: None, FULL: None} | {variant_for(name): None for name in session.devices}
    for variant in variants:
        for model in session.models:

            def work(model: str = model, variant: str = variant) -> Facts:
                found = export(model, variant, session.work / "graphs")
                return {} if found is None else asdict(found)

            yield Step(name=f"graph-{model}-{variant}", asked={"model": model}, work=work)


def _predictions(session: Session) -> Iterator[Step]:
    for name in session.devices:
        for model in session.models:
            graph = session.graph(model, variant_for(name))
            if not session.exported(model, variant_for(name)):
                continue

            def work(graph: Path = graph, name: str = name) -> Facts:
                rows = predict(graph, name, session.strategies)
                return {"rows": {label: asdict(row) for label, row in rows.items()}}

            yield Step(name=f"predicted-{name}-{model}", asked={"strategies": session.strategies}, work=work)


def _conversions(session: Session) -> Iterator[Step]:
    for peer in session.peers:

        def set_up(peer: Peer = peer) -> Facts:
            session.deadline.need(INSTALL_S)
            return asdict(install(peer, session.work / "peers"))

        yield Step(name=f"install-{peer.name}", asked={"requirements": peer.requirements}, work=set_up)
        script = (RUNNERS / peer.runner).read_text(encoding="utf-8")
        installed = session.records.result(f"install-{peer.name}") or {"failure": "it failed"}
        for variant in {session.variant: None, FULL: None}:
            for model in session.models:
                if session.exported(model, variant):
                    yield Step(
                        name=f"peer-{peer.name}-{model}-{variant}",
                        asked={**asdict(peer), "script": script, "devices": session.devices, **installed},
                        work=partial(_convert, session, peer, model, variant, installed["failure"]),
                    )


def _convert(session: Session, peer: Peer, model: str, variant: str, refusal: str) -> Facts:
    if refusal:
        return {"failure": f"not installed: {refusal}", "converted": None}
    session.deadline.need(CONVERT_S)
    graph, output = session.graph(model, variant), session.output(peer.name, model, variant)
    outcome = convert(peer, graph, output, session.work / "peers")
    if outcome.failure:
        return {"failure": outcome.failure, "converted": None}
    devices = [name for name in session.devices if variant_for(name) == FULL]
    return {"failure": "", "converted": asdict(judge(graph, output, devices))}


def _measurements(session: Session) -> Iterator[Step]:
    here = session.machine
    for model in session.models:
        exported = session.exported(model, session.variant)
        if not exported:
            continue
        peers = [peer.name for peer in session.peers if _can_be_stepped(session, peer.name, model)]
        asked: dict[str, Any] = {
            "model": model,
            "variant": session.variant,
            "planned_for": session.planned_for,
            "effort": asdict(session.effort),
            "threads": here.threads,
        }
        for number, labels in enumerate(groups([*session.strategies, *peers], session.together)):

            def work(
                model: str = model, labels: tuple[str, ...] = labels, batch: int = exported["batch"]
            ) -> Facts:
                members = _members(session, model, labels)
                return measure(members, here, session.effort, batch, session.deadline)

            name = f"measured-{here.provider}-{model}-{number}"
            yield Step(name=name, asked=asked | {"labels": labels}, work=work)
        if session.variant == SMALL:

            def errors(model: str = model, labels: tuple[str, ...] = (*session.strategies, *peers)) -> Facts:
                given = import_model(session.graph(model, SMALL))
                return {"rows": update_errors(given, _members(session, model, labels))}

            yield Step(
                name=f"update-{model}",
                asked={
                    "labels": [*session.strategies, *peers],
                    "planned_for": session.planned_for,
                    "scales": SCALES,
                },
                work=errors,
            )
    yield from _node_times(session)


def _node_times(session: Session) -> Iterator[Step]:
    here = session.machine
    for of in (CAST, *session.models):
        model = session.models[0] if of == CAST else of
        if session.exported(model, session.variant):

            def work(of: str = of, model: str = model) -> Facts:
                take = cast_times if of == CAST else node_times
                with Store(session.work / "timings.sqlite") as store:
                    bench = Bench(machine=here, store=store)
                    graph = session.graph(model, session.variant)
                    times = take(graph, device_of(here), bench, session.deadline.tick)
                return {"times": [asdict(time) for time in times]}

            asked = {"of": of, "variant": session.variant, "threads": here.threads}
            yield Step(name=f"nodes-{here.provider}-{of}", asked=asked, work=work)


def _can_be_stepped(session: Session, peer: str, model: str) -> bool:
    result = session.records.result(f"peer-{peer}-{model}-{session.variant}")
    if result is None or result["converted"] is None:
        return False
    converted = Converted(**result["converted"])
    return not converted.unreadable and converted.interface_kept


def _members(session: Session, model: str, labels: tuple[str, ...]) -> list[Entrant]:
    strategies = [label for label in labels if label in STRATEGIES]
    ours = entrants(session.graph(model, session.variant), device(session.planned_for), strategies)
    return [*ours, *(peer_entrant(n, session.converted(n, model)) for n in labels if n in PEERS)]


def session_of(options: argparse.Namespace) -> Session:
    """Put a call together from the command line."""
    here = machine(choose_provider(options.device), options.threads)
    on_gpu = here.provider == "cuda"
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("graphs", "converted", "peers", "records"):
        (options.work / name).mkdir(parents=True, exist_ok=True)
    return Session(
        work=options.work,
        records=Records(folder=options.work / "records"),
        deadline=Deadline.after(options.limit_s),
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
    add("--limit-s", type=float, default=540.0, help="time after which this call ends")
    add("--work", type=Path, default=Path("eval_out"), help="where finished steps are kept")
    add("--out", type=Path, default=RESULTS, help="where the page and pictures go")
    add("--report", action="store_true", help="measure nothing, write the page anew")
    return parser


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = arguments()
    options = parser.parse_args()
    if options.limit_s < LEAST_LIMIT_S and options.peers:
        parser.error(f"with peers a call takes at least --limit-s {LEAST_LIMIT_S:.0f}")
    try:
        session = session_of(options)
        done = options.report or run_steps(
            steps_of(session), session.records, session.deadline, partial(print, flush=True)
        )
        findings = read_findings(session.records)
        pictures = draw(findings, options.out) if can_draw() else ()
        write_text(page(findings, pictures), options.out / "campo_eval.md")
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not can_draw():
        print("no pictures: matplotlib is not installed")
    print(f"{'all done' if done else 'to be continued'}; wrote {options.out / 'campo_eval.md'}")
    return 0 if done else TO_BE_CONTINUED


if __name__ == "__main__":
    sys.exit(main())
