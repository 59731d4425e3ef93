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
import time
from pathlib import Path
from typing import Any

from benchmarks.pages import RESULTS, arguments, made, publish

_CAMPO = (sys.executable, "-m", "campo_onnx")


def checked(graph: Path, strategy: str) -> dict[str, Any]:
    """Optimize one graph, and check the result in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        mixed, plan = Path(scratch, "mixed.onnx"), Path(scratch, "plan.json")
        options = ("--device", "v100", "--strategy", strategy, "-o", str(mixed), "--plan", str(plan))
        subprocess.run((*_CAMPO, "optimize", str(graph), *options), check=True, capture_output=True)
        began = time.monotonic()
        limits = ("--against", str(graph), "--min-speedup", "1.0" if strategy == "optimal" else "0.0")
        process = subprocess.Popen((*_CAMPO, "check", str(mixed), *limits, "--json"), stdout=subprocess.PIPE)
        output = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        low_nodes = sum(node["precision"] == "fp16" for node in json.loads(plan.read_text())["decisions"])
    found = json.loads(output)["graphs"][0]
    rules = {rule["rule"]: rule for rule in found["rules"]}
    return {
        "graph": graph.stem,
        "strategy": strategy,
        "low_nodes": low_nodes,
        "exit_code": process.returncode,
        "rules": {name: rule["status"] for name, rule in rules.items()},
        "drift": rules["drift"].get("value"),
        "says": rules["drift"]["reason"],
        "seconds": seconds,
        "peak_gb": usage.ru_maxrss * 1024 / 1e9,
    }


def main() -> None:
    """Check every graph by every strategy."""
    parser = arguments(__doc__)
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH")
    parser.add_argument("--strategies", nargs="+", default=["optimal", "fine-grained"])
    parser.add_argument("--again", action="store_true", help="check graphs again that are in the results")
    given = parser.parse_args()
    kept = RESULTS / "checks.json"
    rows = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
    for graph in given.graphs:
        for strategy in given.strategies:
            key = (graph.stem, strategy)
            if not given.again and any((row["graph"], row["strategy"]) == key for row in rows):
                continue
            rows = [row for row in rows if (row["graph"], row["strategy"]) != key]
            rows.append(checked(graph, strategy))
            print(json.dumps(rows[-1]), flush=True)
            publish("checks", {"made": made(), "rows": rows})


if __name__ == "__main__":
    main()
