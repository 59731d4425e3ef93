"""Everything there is to measure on a device, in steps that can be interrupted at any time.

    python benchmarks/gpu_session.py [--device cuda|cpu] [--quick] [--limit-s 540] [GRAPH.onnx ...]

Steps: provider check, cast sweep, alignment sweep, calibration, profile of each graph. Run it again
until it says that all is done: finished steps are not repeated, and every timing of an unfinished
one is kept in the store. Results go to results/session_<provider>/ (one JSON a step, the calibration
itself) and results/calibration_<provider>.md.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from campo_onnx.calibrate.accuracy import PAPER_ACCURACY
from campo_onnx.calibrate.calibration import Calibration, load_calibration
from campo_onnx.calibrate.campaign import Campaign, calibrate, full_campaign, quick_campaign
from campo_onnx.calibrate.device import Device
from campo_onnx.calibrate.fit import METHODS
from campo_onnx.calibrate.local import device_of
from campo_onnx.calibrate.microbench import Bench
from campo_onnx.calibrate.profile import read_profile, take_profile, write_profile
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.calibrate.signature import Signature, make_signature
from campo_onnx.calibrate.store import Store, default_path
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.precision import Precision
from campo_onnx.ir.view import FLOAT, OpKey
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.providers import ORT_NAME, choose_provider, machine
from campo_onnx.runtime.sessions import assignments, open_session

RESULTS = Path(__file__).parent / "results"
LOW = Precision.FP16
STEP = ".step.json"


class LimitReachedError(Exception):
    """The time of this call is used up; what was measured is kept."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call: where results go and when it ends."""

    folder: Path
    bench: Bench
    device: Device
    campaign: Campaign
    graphs: tuple[Path, ...]
    end: float
    began: float = field(default_factory=time.monotonic)

    @property
    def on_cpu(self) -> bool:
        """Whether there is no GPU in it."""
        return self.bench.machine.provider == "cpu"

    def tick(self, done: int, total: int) -> None:
        """Show how far a step is, and end the call when its time is up."""
        print(f"\r  {done}/{total}", end="", file=sys.stderr)
        if time.monotonic() > self.end:
            raise LimitReachedError


def check_provider(session: Session) -> dict[str, Any]:
    """The provider loads, names survive, nothing runs elsewhere."""
    from campo_onnx.calibrate.signature import one_node_model

    loaded = open_session(one_node_model(matmul(64, 64, 64), 2), session.bench.machine)
    found = assignments(loaded)
    return {
        "provider": ORT_NAME[session.bench.machine.provider],
        "nodes": sorted(a.node for a in found),
        "all_on_provider": all(a.provider == ORT_NAME[session.bench.machine.provider] for a in found),
    }


def sweep_casts(session: Session) -> list[dict[str, Any]]:
    """Casts in both directions by number of elements."""
    campaign, rows = session.campaign, []
    sweep = list(cast_samples(campaign.casts, campaign.largest_cast_elements, LOW))
    for done, (elements, signature) in enumerate(sweep, start=1):
        timing = session.bench.time(signature)
        rows.append({"elements": elements, "node": signature.input_types, **asdict(timing)})
        session.tick(done, len(sweep))
    return rows


def sweep_alignment(session: Session) -> list[dict[str, Any]]:
    """Matrix products off, on and far on the multiples that tensor cores want."""
    base = 256 if session.on_cpu else 4096
    sizes = [base - 1, base, base + 8, base + 63, base + 64]
    shapes = [(base, k, n) for k in sizes for n in sizes]
    rows = []
    for done, (m, k, n) in enumerate(shapes, start=1):
        fp32 = matmul(m, k, n)
        low = fp32.lowered(LOW)
        assert low is not None
        times = {"fp32_us": session.bench.time(fp32).median_us, "low_us": session.bench.time(low).median_us}
        rows.append({"m": m, "k": k, "n": n, **times})
        session.tick(done, len(shapes))
    return rows


def calibration_path(session: Session) -> Path:
    return session.folder / f"{session.device.name}-{LOW.value}.json"


def run_calibration(session: Session) -> dict[str, Any]:
    made = calibrate(session.campaign, session.bench, session.device, LOW, session.tick)
    calibration_path(session).write_text(made.to_json(), encoding="utf-8")
    return {"score": made.score, "operators": len({entry.op for entry in made.entries})}


def profile_of(graph: Path) -> Callable[[Session], dict[str, Any]]:
    def step(session: Session) -> dict[str, Any]:
        imported = import_model(graph)
        feeds = synthesize(imported.view)
        profile = take_profile(
            imported, feeds, session.bench, session.device, steps=12, on_progress=session.tick
        )
        write_profile(profile, session.folder / f"{graph.stem}.parquet")
        back = read_profile(session.folder / f"{graph.stem}.parquet")
        return {
            "nodes": len(back.table),
            "not_measured": back.failed,
            "step_us": back.step_us,
            "nodes_us": back.nodes_us,
            "accounted": back.accounted,
            "operators": back.ops().head(8).to_dicts(),
        }

    return step


def matmul(m: int, k: int, n: int) -> Signature:
    types = {"x0": (FLOAT, (m, k)), "x1": (FLOAT, (k, n)), "y0": (FLOAT, (m, n))}
    return make_signature(OpKey("", "MatMul"), inputs=("x0", "x1"), outputs=("y0",), types=types)


def steps_of(session: Session) -> Iterator[tuple[str, Callable[[Session], Any]]]:
    yield "provider", check_provider
    yield "casts", sweep_casts
    yield "alignment", sweep_alignment
    yield "calibration", run_calibration
    for graph in session.graphs:
        yield f"profile_{graph.stem}", profile_of(graph)


def run_step(name: str, step: Callable[[Session], Any], session: Session) -> bool:
    """Run one step unless it is done; say whether it is now."""
    result = session.folder / f"{name}{STEP}"
    if result.exists():
        print(f"{name}: done before")
        return True
    began = time.monotonic()
    facts: dict[str, Any] = {
        "machine": asdict(session.bench.machine),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        facts["result"] = step(session)
    except LimitReachedError:
        print(f"\n{name}: time is up; run the same command again to go on")
        return False
    except CampoError as error:
        print(f"\n{name}: failed: {error}")
        facts["failure"] = str(error)
    facts["seconds"] = round(time.monotonic() - began, 1)
    facts["load_average"] = os.getloadavg()
    result.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"\r{name}: {'failed' if 'failure' in facts else 'done'} in {facts['seconds']:.0f} s")
    return True


def report(session: Session) -> str:
    """Put the results of all finished steps into one page."""
    facts = {
        path.name.removesuffix(STEP): json.loads(path.read_text(encoding="utf-8"))
        for path in session.folder.glob(f"*{STEP}")
    }
    here = session.bench.machine
    software = [f"ONNX Runtime {here.ort}"]
    if here.provider == "cuda":
        software += [f"driver {here.driver}", f"CUDA {here.cuda}", f"TF32 {'on' if here.tf32 else 'off'}"]
    else:
        software += [f"threads per node: {here.threads}"]
    lines = [
        f"# Calibration of {here.device} ({here.provider})",
        "",
        f"{', '.join(software)}. Written by `benchmarks/gpu_session.py`.",
    ]
    path = calibration_path(session)
    if path.exists():
        lines += _calibration_lines(load_calibration(path), facts)
    for name, step in sorted(facts.items()):
        if name.startswith("profile_") and "result" in step:
            lines += _profile_lines(name.removeprefix("profile_"), step)
    if "alignment" in facts and "result" in facts["alignment"]:
        lines += _alignment_lines(facts["alignment"])
    return "\n".join(lines) + "\n"


def _calibration_lines(made: Calibration, facts: dict[str, Any]) -> list[str]:
    step = facts.get("calibration", {})
    load = ", ".join(f"{value:.1f}" for value in step.get("load_average", ()))
    names = [method.name for method in METHODS]
    lines = [
        "",
        f"## M_A (Eq. 3) on held-out shapes, {made.precision.value}",
        "",
        f"Measured {made.measured_at}; in {step.get('seconds', 0):.0f} s (the last call); load average of "
        f"the machine meanwhile {load}. Other programs ran on it: times are medians of the faster half of "
        'the repeats. Shapes: fitted + held out. "In use" is the fit that did best in cross-validation '
        "within the fitted shapes.",
        "",
        f"| operator | shapes | in use | {' | '.join(names)} | one model for all | roofline "
        "| FP32 from shapes |",
        "|---|--:|--:|" + "--:|" * len(names) + "--:|--:|--:|",
    ]
    for entry in made.entries:
        scores = entry.scores
        figures = [scores.chosen, *(scores.by_method[n] for n in names), scores.general, scores.roofline]
        name = f"{entry.op}, tensor cores" if entry.on_tensor_cores else entry.op
        cells = " | ".join(f"{figure:.1%}" for figure in [*figures, scores.fp32])
        lines.append(f"| {name} | {entry.fitted}+{scores.shapes} | {cells} |")
    means = [
        made.score,
        *(made.mean(lambda s, n=n: s.by_method[n]) for n in names),
        made.mean(lambda s: s.general),
        made.mean(lambda s: s.roofline),
        made.mean(lambda s: s.fp32),
    ]
    lines += [
        f"| **all** | | {' | '.join(f'{mean:.1%}' for mean in means)} |",
        "",
        f"The paper reports {PAPER_ACCURACY:.1%} over its 143 operators on its GPUs.",
        "",
        f"Cast (Eq. 1): {made.cast.r_us * 1e6:.1f} us per million elements + {made.cast.c_i_us:.2f} us, "
        f"M_A {made.cast_score:.1%}; fitted to microseconds as in the paper, {made.cast_paper_score:.1%}.",
        "",
        *(f"- {op}: {why}" for op, why in made.failures.items()),
    ]
    return lines


def _profile_lines(name: str, step: dict[str, Any]) -> list[str]:
    result = step["result"]
    share = result["nodes_us"] / result["step_us"]
    accounted = result["accounted"]
    same_step = "" if accounted is None else f" Within one and the same step: {accounted:.1%}."
    load = ", ".join(f"{value:.1f}" for value in step["load_average"])
    return [
        "",
        f"## Profile of {name}",
        "",
        f"{result['nodes']} nodes, {result['not_measured']} not measured. Sum of the nodes' median times "
        f"{result['nodes_us'] / 1000:.1f} ms, the runtime's own median step "
        f"{result['step_us'] / 1000:.1f} ms: {share:.1%}.{same_step} Load average of the machine: {load}.",
        "",
        "| operator | nodes | ms |",
        "|---|--:|--:|",
        *(f"| {row['op']} | {row['nodes']} | {row['fp32_us'] / 1000:.1f} |" for row in result["operators"]),
    ]


def _alignment_lines(step: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Alignment of matrix products",
        "",
        "| M | K | N | FP32 us | low us |",
        "|--:|--:|--:|--:|--:|",
        *(
            f"| {row['m']} | {row['k']} | {row['n']} | {row['fp32_us']:.1f} | {row['low_us']:.1f} |"
            for row in step["result"]
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit-s", type=float, default=540.0, help="time after which a call ends")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        here = machine(choose_provider(options.device), options.threads)
        device = device_of(here)
        with Store(options.store or default_path()) as store:
            folder = options.out / f"session_{here.provider}"
            folder.mkdir(parents=True, exist_ok=True)
            session = Session(
                folder=folder,
                bench=Bench(machine=here, store=store),
                device=device,
                campaign=(quick_campaign if options.quick else full_campaign)(here.provider),
                graphs=tuple(options.graphs),
                end=time.monotonic() + options.limit_s,
            )
            finished = all(run_step(name, step, session) for name, step in steps_of(session))
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    page = options.out / f"calibration_{here.provider}.md"
    page.write_text(report(session), encoding="utf-8")
    print(f"{'all done' if finished else 'to be continued'}; wrote {page}")
    return 0 if finished else 75


if __name__ == "__main__":
    sys.exit(main())
