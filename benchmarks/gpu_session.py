"""Everything there is to measure on a device, in steps that can be interrupted at any time.

    python -m benchmarks.gpu_session [--device cuda|cpu] [--quick] [--limit-s 540] [GRAPH.onnx ...]

``--plan`` prints the steps and how long each is expected to take. What shows that anything works comes
first, then the first two graphs, planned with public figures, beside PyTorch: whatever comes after may be
cut off. Then the quick calibration, and every graph in FP32, as strategies plan it with the calibration, and
beside PyTorch: a machine lent for half an hour leaves those behind. Then CUDA graphs, FP32 without TF32
and with channels last, sweeps, profiles and, last, hardware counters; without ``--quick`` a full
calibration, which takes hours. Run it again until it says that all is done:
finished steps are not repeated, and every timing of an unfinished one is kept in the store. Steps run in a
process of their own: one that crashes or hangs is on record as failed, and the others go on. Results go to
session_<provider>/ below ``--work`` (a JSON file a step, profiles, calibrations, the store), all of it as
session_<provider>.tar.gz as well, and to calibration_<provider>.json and .md. With the archive unpacked below
``--work``, another machine of the same kind goes on.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.gpu_machine import LOW, Session, check_provider, count_some, facts, step_of
from benchmarks.gpu_numbers import compare_numbers
from benchmarks.gpu_plans import planned
from benchmarks.gpu_rows import row_forms
from benchmarks.gpu_steps import (
    CAPTURED,
    EVERY,
    METERED,
    REPLANNED,
    bench_forms,
    bench_graph,
    calibrate_device,
    profile_graph,
    sweep_alignment,
    sweep_casts,
    time_launches,
    time_variants,
    trace_graph,
    weight_gradients,
)
from benchmarks.gpu_torch import (
    ALL_SIDES,
    CAPTURED_SIDES,
    COMPILED_SIDES,
    REPLANNED_SIDES,
    against_torch,
    zoo_model,
)
from benchmarks.pages import RESULTS, STUB, provenance, publish, refuse_stub
from benchmarks.steps import (
    TO_BE_CONTINUED,
    Call,
    Deadline,
    Records,
    Step,
    add_arguments,
    call_of,
    is_chosen,
    plan_of,
    run_steps,
)
from benchmarks.supervision import AGAIN, Marks, die_with_parent, forget_failures, pack, supervise
from campo_onnx import CampoError, Precision, Target, target
from campo_onnx.calibrate.calibration import Calibration, Scores, load_calibration
from campo_onnx.calibrate.catalog import file_name
from campo_onnx.calibrate.fit import METHODS, PAPER_ACCURACY
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store, default_path
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.providers import cuda_problem
from campo_onnx.runtime.registry import machine, processor_for
from campo_onnx.targets.detect import target_of

FIRST_GRAPHS = 2
"""Graphs that are measured before anything is calibrated."""

_ABSENT = Machine(provider="cuda", device="not here", driver="", cuda="", ort="", tf32=False, threads=0)


def steps_of(session: Session, *, full: bool) -> Iterator[Step]:
    """The steps in order, with the seconds that each is expected to take: what an H200 took, for most."""
    here = session.bench.machine
    asked: dict[str, object] = {"device": here.device, "ort": here.ort}
    quick: dict[str, object] = {"ops": session.ops, "shapes": session.shapes}

    def step(name: str, seconds: float, work: Any, *arguments: Any, **more: object) -> Step:
        return Step(name=name, work=partial(work, *arguments, session), seconds=seconds, asked=asked | more)

    first, others = session.graphs[:FIRST_GRAPHS], session.graphs[FIRST_GRAPHS:]
    yield step("facts", 5, facts)
    yield step("provider", 5, check_provider)
    for graph in first:
        yield from _beside_others(graph, step)
    yield step("calibration_quick", 240, calibrate_device, LOW, False, False, **quick)
    yield step("launches", 10, time_launches)
    yield from _calibrated(first, step)
    for graph in others:
        yield from _beside_others(graph, step)
    yield from _calibrated(others, step)
    if not session.on_cpu:
        for graph in filter(zoo_model, session.graphs):
            yield step(f"torch_{graph.stem}_captured", 40, against_torch, graph, CAPTURED_SIDES)
    for graph in filter(zoo_model, session.graphs):
        yield step(f"bench_{graph.stem}", 100, bench_graph, graph, EVERY)
    if not session.on_cpu:
        for graph in session.graphs:
            yield step(f"bench_{graph.stem}_captured", 100, bench_graph, graph, CAPTURED)
            yield step(f"variants_{graph.stem}", 20, time_variants, graph)
    yield from _details(session, step)
    if not session.on_cpu:
        yield step("calibration_bf16_quick", 240, calibrate_device, Precision.BF16, False, False, **quick)
    yield step("counters", 120, count_some)
    if full:
        yield step("calibration", 4 * 3600, calibrate_device, LOW, True, False)
        if not session.on_cpu:
            yield step("calibration_counters", 3600, calibrate_device, LOW, True, True)


def _beside_others(graph: Path, step: Callable[..., Step]) -> Iterator[Step]:
    """A graph as strategies plan it, beside PyTorch where that has the model, and FP32's numbers."""
    if zoo_model(graph):
        yield step(f"torch_{graph.stem}", 60, against_torch, graph, ALL_SIDES)
    else:
        yield step(f"bench_{graph.stem}", 100, bench_graph, graph, EVERY)
    yield step(f"numerics_{graph.stem}", 20, compare_numbers, graph)


def _calibrated(graphs: Sequence[Path], step: Callable[..., Step]) -> Iterator[Step]:
    """Graphs as they are planned with what was just measured."""
    for graph in graphs:
        if zoo_model(graph):
            yield step(f"torch_{graph.stem}_calibrated", 30, against_torch, graph, REPLANNED_SIDES)
        else:
            yield step(f"bench_{graph.stem}_calibrated", 60, bench_graph, graph, REPLANNED)


def _details(session: Session, step: Callable[..., Step]) -> Iterator[Step]:
    """Steps that explain where a training step's time goes."""
    for name, forms in session.forms.items():
        yield step(f"forms_{name}", 80, bench_forms, forms)
    if not session.on_cpu:
        for graph in session.graphs:
            yield step(f"energy_{graph.stem}", 30, bench_graph, graph, METERED)
        for graph in filter(zoo_model, session.graphs):
            yield step(f"compiled_{graph.stem}", 75, against_torch, graph, COMPILED_SIDES)
    yield step("casts", 60, sweep_casts)
    yield step("alignment", 60, sweep_alignment)
    yield step("weight_gradients", 30, weight_gradients)
    yield step("row_forms", 40, row_forms)
    if not session.on_cpu:
        for graph in session.graphs:
            yield step(f"trace_{graph.stem}", 20, trace_graph, graph)
    for graph in session.graphs:
        yield step(f"step_{graph.stem}", 30, step_of, graph)
    for graph in session.graphs:
        yield step(f"profile_{graph.stem}", 180, profile_graph, graph)


def forms_of(graphs: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Find graphs that are another form of one of them: ``resnet50_b64.conv.onnx`` of ``resnet50_b64.onnx``.

    Returns
    -------
    dict
        By name of the model, for each that has more than one: its graphs by form, the usual first.
    """
    by_model: dict[str, dict[str, Path]] = {}
    for usual in graphs:
        others = {
            g.stem.removeprefix(f"{usual.stem}."): g for g in graphs if g.stem.startswith(f"{usual.stem}.")
        }
        if others:
            by_model[usual.stem] = {"usual": usual} | others
    return by_model


def collect(session: Session, records: Records) -> dict[str, Any]:
    """Put the results of all finished steps together."""
    entries = records.all()
    results = {name: step["result"] for name, step in entries.items() if "result" in step}

    def by_graph(prefix: str) -> dict[str, Any]:
        return {n.removeprefix(prefix): entries[n] for n in results if n.startswith(prefix)}

    calibrations = []
    for precision in (Precision.FP16, Precision.BF16):
        paths = [session.calibration_path(precision, full=full) for full in (True, False)]
        if path := next((path for path in paths if path.exists()), None):
            step = next((s for s in entries.values() if s.get("result", {}) and _file(s) == path.name), {})
            calibrations.append(_calibration(load_calibration(path), step))
    return {
        "template": "calibration",
        "made": provenance(),
        "machine": asdict(session.bench.machine),
        "paper_accuracy": PAPER_ACCURACY,
        "methods": [method.name for method in METHODS],
        "calibrations": calibrations,
        "profiles": by_graph("profile_"),
        "benches": by_graph("bench_") | by_graph("forms_") | by_graph("energy_"),
        "torch": by_graph("torch_") | by_graph("compiled_"),
        "numerics": by_graph("numerics_"),
        "variants": by_graph("variants_"),
        "traces": by_graph("trace_"),
        **{
            name: results.get(name)
            for name in ("launches", "weight_gradients", "row_forms", "counters", "alignment")
        },
        "failures": {name: step["failure"] for name, step in entries.items() if "failure" in step},
    }


def _file(step: dict[str, Any]) -> str | None:
    result = step["result"]
    return result.get("file") if isinstance(result, dict) else None


def _calibration(calibration: Calibration, step: dict[str, Any]) -> dict[str, Any]:
    def mean(of: Callable[[Scores], float]) -> float:
        return calibration.mean(of)

    kinds = ("general", "roofline", "fp32")
    by_method = {m.name: mean(lambda scores, m=m: scores.by_method[m.name]) for m in METHODS}
    return {
        "precision": calibration.precision.value,
        "measured_at": calibration.measured_at,
        "seconds": step.get("seconds"),
        "load_average": step.get("load_average", []),
        "rows": [
            {"op": e.op, "on_tensor_cores": e.on_tensor_cores, "fitted": e.fitted}
            | {key: getattr(e.scores, key) for key in ("shapes", "chosen", *kinds)}
            | {"by_method": dict(e.scores.by_method)}
            for e in calibration.entries
        ],
        "all": {"chosen": calibration.score, "by_method": by_method}
        | {kind: mean(attrgetter(kind)) for kind in kinds},
        "cast": asdict(calibration.cast) | {"score": calibration.cast_score},
        "cast_paper_score": calibration.cast_paper_score,
        "failures": dict(calibration.failures),
    }


def what_to_copy(session: Session) -> list[str]:
    """Commands that ship the calibration and keep the results."""
    lines = []
    full = session.calibration_path(LOW, full=True)
    written = full if full.exists() else session.calibration_path(LOW, full=False)
    if (
        written.exists() and not session.on_cpu and STUB not in session.bench.machine.driver
    ):  # no CPU stands for all others
        shipped = Path("campo_onnx") / "calibrate" / "data" / "calibrations"
        lines.append(f"to ship the calibration: cp {written} {shipped / file_name(session.device, LOW)}")
    lines.append(f"to keep everything: commit {session.folder} and the page beside it")
    return lines


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("graphs", nargs="*", type=Path)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--quick", action="store_true", help="leave the full calibration out")
    add("--ops", type=lambda text: text.split(","), default=[], help="operators of the quick calibration")
    add("--shapes", type=int, default=24, help="shapes of each in the quick calibration")
    add("--round-s", type=float, default=40.0, help="for steps that take turns, after which no round begins")
    add("--prepare", metavar="DEVICE", help="plan the graphs for a GPU that is not here, and measure nothing")
    add("--threads", type=int, default=0)
    add("--store", type=Path, default=None, help="kept beside the results by default")
    # For how many seconds, and for which process: see supervision.py.
    add("--worker", nargs=2, type=float, default=None, help=argparse.SUPPRESS)
    add_arguments(parser, work=str(RESULTS))
    options = parser.parse_args()
    try:
        if options.prepare or (options.plan and options.device == "cuda" and cuda_problem()):
            here, figures = _ABSENT, target(options.prepare or "h100")  # a plan needs no GPU
        elif options.report and (recorded := _recorded(options)) is not None:
            here, figures = recorded, target_of(recorded)
        else:
            here = machine(processor_for(options.device), options.threads)
            figures = target_of(here)
        refuse_stub(asdict(here), options.work)
        with _opened(options, here, figures) as session:
            if options.prepare:
                return _prepare(session, options.work)
            return _work(session, options) if options.worker is not None else _lead(session, options)
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _recorded(options: argparse.Namespace) -> Machine | None:
    """The machine that a session has measured: its page is written anywhere."""
    facts_of = Records(folder=options.work / f"session_{options.device}").result("facts")
    return None if facts_of is None else Machine(**facts_of["machine"])


@contextmanager
def _opened(options: argparse.Namespace, here: Machine, figures: Target) -> Iterator[Session]:
    forms = forms_of(options.graphs)
    of_forms = {graph for form in forms.values() for graph in [*form.values()][1:]}
    folder = options.work / f"session_{here.provider}"
    folder.mkdir(parents=True, exist_ok=True)
    with Store(options.store or folder / default_path().name) as store:
        bench = NodeTimer(machine=here, store=store)
        yield Session(
            folder=folder,
            bench=bench,
            device=figures,
            graphs=tuple(graph for graph in options.graphs if graph not in of_forms),
            forms=forms,
            ops=tuple(options.ops),
            shapes=options.shapes,
            round_s=options.round_s,
        )


def _work(session: Session, options: argparse.Namespace) -> int:
    """Do steps in this process, until one of them fails unexpectedly or the time is up."""
    seconds, parent = options.worker
    die_with_parent(int(parent))
    marks = Marks(folder=session.folder)
    deadline = replace(Deadline.after(seconds), on_tick=marks.advance)
    call = Call(records=Records(folder=session.folder), deadline=deadline)
    steps, failures = steps_of(session, full=not options.quick), _unexpected(call.records)
    is_done = run_steps(steps, call, only=options.only, say=partial(print, flush=True), watch=marks)
    if is_done:
        return 0
    return AGAIN if _unexpected(call.records) != failures else TO_BE_CONTINUED


def _unexpected(records: Records) -> set[str]:
    """Failures that a process does not survive, by name and time."""
    return {f"{name} {step['finished_at']}" for name, step in records.all().items() if "traceback" in step}


def _prepare(session: Session, work: Path) -> int:
    """Plan every graph, with the session's calibration if it made one, and write the archive."""
    compared = REPLANNED if session.calibrated else EVERY
    for graph in session.graphs:
        began = time.monotonic()
        members = planned(graph, compared.labels, session)
        names = ", ".join(" = ".join(member.labels) for member in members)
        print(f"{graph.stem}: {names} ({time.monotonic() - began:.0f} s)", flush=True)
    archive = work / f"{session.folder.name}.tar.gz"
    pack(session.folder, archive)
    print(f"wrote {archive}: carry it, and give it to --resume")
    return 0


def _lead(session: Session, options: argparse.Namespace) -> int:
    """Let workers do the steps; then write the page and the archive."""
    call = call_of(options, session.folder)
    all_steps = list(steps_of(session, full=not options.quick))
    if options.plan:
        print("\n".join(plan_of(all_steps, call.records)))
        return 0
    steps = {step.name: step for step in all_steps if is_chosen(step.name, options.only)}
    code = 0
    if not options.report:
        if options.retry:
            forget_failures(call.records, [*steps])
        own = [word for word in sys.argv[1:] if word != "--retry"]
        command = [sys.executable, "-m", "benchmarks.gpu_session", *own, "--worker"]
        code = supervise(
            lambda left_s: [*command, f"{left_s:.1f}", str(os.getpid())], steps, call.records, call.deadline
        )
    name = f"calibration_{session.provider}"
    for path in publish("calibration", collect(session, call.records), options.work, name=name):
        print(f"wrote {path}")
    archive = options.work / f"{session.folder.name}.tar.gz"
    pack(session.folder, archive)
    print("\n".join([f"wrote {archive}", *what_to_copy(session)]))
    if not options.report:
        print({0: "all done", TO_BE_CONTINUED: "to be continued"}.get(code, "this cannot go on"))
    return code


if __name__ == "__main__":
    sys.exit(main())
