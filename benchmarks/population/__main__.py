"""A population of random networks, planned by every strategy for several devices.

    python -m benchmarks.population [--count 1000] [--workers 2 | --cluster ADDRESS] [--measure cpu]

Needs PyTorch. Each network is a line of ``--work``/rows.jsonl: kill the command at any time, run it again,
and it goes on. Writes results/population.json and .md with what has come in.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import RESULTS, arguments
from benchmarks.population import DEVICES
from benchmarks.population.networks import SEED
from benchmarks.population.page import publish_rows
from benchmarks.population.rows import row
from campo_onnx import __version__
from campo_onnx.errors import CampoError
from campo_onnx.scale.pools import pool_for
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run

_SAY_EVERY_S = 30.0
_NEEDED = ("campo_onnx", "benchmarks", "torch")


def task_of(number: int, devices: tuple[str, ...], measure_on: str) -> Task:
    """Make the task of one network; whatever decides its row is in the key."""
    key = (
        f"network {SEED}/{number}, campo-onnx {__version__}, {' '.join(devices)}, {measure_on or 'predicted'}"
    )
    return Task(key=key, function=row, arguments=(number, devices, measure_on))


def main() -> int:
    """Do what is not done yet, and write the page."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--count", type=int, default=1000, help="networks 0 to COUNT - 1")
    add("--devices", nargs="+", default=list(DEVICES), help="devices to plan for")
    add("--measure", default="", metavar="PROVIDER", help="also time the steps here: cpu or cuda")
    add("--workers", type=int, default=1, help="processes of this machine")
    add("--cluster", default="", metavar="ADDRESS", help="a Ray cluster: HOST:PORT, auto, or local")
    add("--work", type=Path, default=Path("build/population"), help="where rows are kept")
    add("--results", type=Path, default=RESULTS, help="where the page goes")
    add("--report", action="store_true", help="do nothing, write the page anew")
    options = parser.parse_args()
    tasks = [task_of(n, tuple(options.devices), options.measure) for n in range(options.count)]
    try:
        with Results(options.work / "rows.jsonl") as results:
            if not options.report:
                with pool_for(options.workers, options.cluster, needs=_NEEDED) as pool:
                    outcomes = run(tasks, pool, results, _progress())
                failures = {key: outcome.failure for key, outcome in outcomes.items() if outcome.failure}
                for key, failure in failures.items():
                    print(f"{key}: {failure}", file=sys.stderr)
            rows = [results[task.key] for task in tasks if task.key in results]
        if rows:
            print(*publish_rows(rows, len(tasks), options.results))
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if len(rows) == len(tasks) else 1


def _progress() -> Callable[[int, int], None]:
    """Say now and then how far the work is."""
    said_s = 0.0

    def advance(done: int, total: int) -> None:
        nonlocal said_s
        if done == total or time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{done} of {total} networks", file=sys.stderr, flush=True)

    return advance


if __name__ == "__main__":
    sys.exit(main())
