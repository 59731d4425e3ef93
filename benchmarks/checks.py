"""Check our own results: optimize each graph, check it against its FP32 step; verdict, memory and time.

    python -m benchmarks.checks GRAPH... [--strategies optimal fine-grained]

Writes results/checks.json and .md, row by row; what is in them already is checked again only with --again.
``fine-grained`` lowers whatever the lists and the values allow, worth it or not: drift is at its largest.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages import RESULTS, arguments, provenance, publish

_CAMPO = (sys.executable, "-m", "campo_onnx")


def checked(
    graph: Path, strategy: str, device: Sequence[str] = ("--device", "v100"), limit_s: float | None = None
) -> dict[str, Any]:
    """Optimize one graph, and check the result in a process of its own.

    ``device`` are the options that name it; a plan or a check that takes longer than ``limit_s`` failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        mixed, plan = Path(scratch, "mixed.onnx"), Path(scratch, "plan.json")
        options = (*device, "--strategy", strategy, "-o", str(mixed), "--plan", str(plan))
        planned = _finished(("optimize", str(graph), *options), limit_s)
        if planned.exit_code:
            return {"failed": planned.output, "plan_s": planned.seconds}
        limits = ("--against", str(graph), "--min-speedup", "1.0" if strategy == "optimal" else "0.0")
        done = _finished(("check", str(mixed), *limits, "--json"), limit_s)
        document = json.loads(plan.read_text())
    row = {
        "low_nodes": sum(node["precision"] == document["low"] for node in document["decisions"]),
        "plan_s": planned.seconds,
        "exit_code": done.exit_code,
        "seconds": done.seconds,
        "peak_gb": done.peak_gb,
    }
    if not done.output.startswith("{"):
        return {**row, "failed": done.output}
    report = json.loads(done.output)["graphs"][0]
    rules = {rule["rule"]: rule for rule in report["rules"]}
    return {
        **row,
        "rules": {name: rule["status"] for name, rule in rules.items()},
        "drift": rules["drift"].get("value"),
        "says": rules["drift"]["reason"],
    }


class _Finished(NamedTuple):
    """A command that ended."""

    exit_code: int
    output: str  # its messages where it printed nothing else
    seconds: float
    peak_gb: float


def _finished(command: Sequence[str], limit_s: float | None) -> _Finished:
    """Run a command of the package to its end, or to the limit."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen((*_CAMPO, *command), stdout=out, stderr=messages)
        timer = threading.Timer(limit_s or threading.TIMEOUT_MAX, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        messages.seek(0)
        output = out.read() or messages.read().strip()
    if limit_s is not None and seconds >= limit_s:
        output = f"{command[0]} took longer than {limit_s:.0f} s"
    return _Finished(process.returncode, output, seconds, usage.ru_maxrss * 1024 / 1e9)


def main() -> None:
    """Check every graph by every strategy."""
    parser = arguments(__doc__)
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH")
    parser.add_argument("--strategies", nargs="+", default=["optimal", "fine-grained"])
    parser.add_argument("--again", action="store_true", help="check graphs again that are in the results")
    options = parser.parse_args()
    kept = RESULTS / "checks.json"
    rows = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
    for graph in options.graphs:
        for strategy in options.strategies:
            key = (graph.stem, strategy)
            if not options.again and any((row["graph"], row["strategy"]) == key for row in rows):
                continue
            rows = [row for row in rows if (row["graph"], row["strategy"]) != key]
            row = checked(graph, strategy)
            rows.append({"graph": graph.stem, "strategy": strategy, **row})
            print(json.dumps(rows[-1]), flush=True)
            publish("checks", {"made": provenance(), "rows": rows})


if __name__ == "__main__":
    main()
