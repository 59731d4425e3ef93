"""Everything there is to measure on a device, in steps that can be interrupted at any time.

    python benchmarks/gpu_session.py [--device cuda|cpu] [--quick] [--limit-s 540] [GRAPH.onnx ...]

Steps: facts about the machine; provider check; whole steps of each graph; launch overhead, casts,
alignment, both forms of a convolution's weight gradient; hardware counters of a few nodes; profile of
each graph with a kernel trace; quick calibrations and, without --quick, a full one, which takes hours.
Run it again until it says that all is done: finished steps are not repeated, and every timing of an
unfinished one is kept in the store. A step that fails is noted and passed over; --retry tries those
again. Results go to results/session_<provider>/ (one JSON a step, profiles, calibrations) and
results/calibration_<provider>.md.
"""

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_call import LOW, LimitReachedError, Session
from gpu_facts import Step
from gpu_report import STEP, report
from gpu_steps import steps_of

from campo_onnx.calibrate.catalog import file_name
from campo_onnx.devices.detect import device_of
from campo_onnx.errors import CampoError
from campo_onnx.measure.node_timer import Bench
from campo_onnx.measure.store import Store, default_path
from campo_onnx.runtime.providers import choose_provider, machine

RESULTS = Path(__file__).parent / "results"
TO_BE_CONTINUED = 75


def run_step(name: str, step: Step, session: Session) -> bool:
    """Run one step unless it is done; say whether the call may go on."""
    result = session.folder / f"{name}{STEP}"
    if result.exists():
        print(f"{name}: done before")
        return True
    began = time.monotonic()
    facts: dict[str, Any] = {
        "machine": asdict(session.bench.machine),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    goes_on = True
    try:
        facts["result"] = step(session)
    except LimitReachedError:
        print(f"\n{name}: time is up; run the same command again to go on")
        return False
    except CampoError as error:
        facts["failure"] = str(error)
    except Exception as error:  # one step must not cost the others
        facts["failure"] = f"{type(error).__name__}: {error}"
        facts["traceback"] = traceback.format_exc()
        goes_on = False  # an error of CUDA stays with the process: the next call is a fresh one
    facts["seconds"] = round(time.monotonic() - began, 1)
    facts["load_average"] = os.getloadavg()
    draft = result.with_name(f".{result.name}")
    draft.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    draft.replace(result)
    how = f"failed: {facts['failure']}" if "failure" in facts else "done"
    print(f"\r{name}: {how} ({facts['seconds']:.0f} s)")
    if not goes_on:
        print("run the same command again to go on with the next step")
    return goes_on


def forget_failures(folder: Path) -> None:
    """Let steps that failed run again."""
    for path in folder.glob(f"*{STEP}"):
        if "failure" in json.loads(path.read_text(encoding="utf-8")):
            path.unlink()


def what_to_copy(session: Session) -> list[str]:
    """What to do with the calibrations that were made."""
    lines = []
    full = session.calibration_path(LOW, full=True)
    made = full if full.exists() else session.calibration_path(LOW, full=False)
    if made.exists() and not session.on_cpu:  # no CPU stands for all others
        shipped = Path("campo_onnx") / "calibrate" / "data" / "calibrations"
        lines.append(f"to ship the calibration: cp {made} {shipped / file_name(session.device.name, LOW)}")
    lines.append(f"to keep everything: commit {session.folder} and the page beside it")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="leave the full calibration out")
    parser.add_argument("--retry", action="store_true", help="run steps again that failed")
    parser.add_argument("--limit-s", type=float, default=540.0, help="time after which a call ends")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    end = time.monotonic() + options.limit_s
    try:
        here = machine(choose_provider(options.device), options.threads)
        device = device_of(here)
        with Store(options.store or default_path()) as store:
            folder = options.out / f"session_{here.provider}"
            folder.mkdir(parents=True, exist_ok=True)
            if options.retry:
                forget_failures(folder)
            session = Session(
                folder=folder,
                bench=Bench(machine=here, store=store),
                device=device,
                graphs=tuple(options.graphs),
                full=not options.quick,
                end=end,
            )
            finished = all(run_step(name, step, session) for name, step in steps_of(session))
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    page = options.out / f"calibration_{here.provider}.md"
    page.write_text(report(session), encoding="utf-8")
    print(f"{'all done' if finished else 'to be continued'}; wrote {page}")
    print("\n".join(what_to_copy(session)))
    return 0 if finished else TO_BE_CONTINUED


if __name__ == "__main__":
    sys.exit(main())
