"""Cost of many tasks: networks of the population, and tasks that do nothing, on 1 and 2 workers and on Ray.

    python -m benchmarks.scale [--networks 12] [--nothings 2000] [--graphs 100000]

Needs PyTorch and Ray. Writes results/scale.json and .md.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pages import arguments, provenance, publish
from benchmarks.population import FAMILIES
from benchmarks.population.rows import row
from campo_onnx.scale.pools import pool_for
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Pool, Task, run

_NEEDED = ("campo_onnx", "benchmarks", "torch")
_POOLS = {"this process": (1, ""), "2 processes": (2, ""), "Ray, 2 workers": (2, "local")}
_WARM = 1_000_000  # first number of networks that only load what a worker needs


def opened(name: str) -> AbstractContextManager[Pool]:
    workers, cluster = _POOLS[name]
    return pool_for(workers, cluster, needs=_NEEDED)


def timed(tasks: Sequence[Task], pool: Pool) -> dict[str, float]:
    """Do tasks: seconds, CPU seconds of the tasks and of this process beside them, tasks per second."""
    with TemporaryDirectory() as folder, Results(Path(folder) / "rows.jsonl") as results:
        began, own = time.perf_counter(), time.process_time()
        outcomes = run(tasks, pool, results).values()
        wall_s, own_s = time.perf_counter() - began, time.process_time() - own
    if failures := [outcome.failure for outcome in outcomes if outcome.failure]:
        raise AssertionError(failures[0])
    return {
        "tasks": len(outcomes),
        "wall_s": wall_s,
        "tasks_cpu_s": sum(outcome.cpu_s for outcome in outcomes),
        "own_cpu_s": own_s,
        "per_s": len(outcomes) / wall_s,
    }


def measure(name: str, networks: int, nothings: int) -> dict[str, Any]:
    """Measure one kind of workers, opened and warm."""
    began = time.perf_counter()
    with opened(name) as pool:
        for _ in range(2):  # with two workers, both
            timed([_network(_WARM + i) for i in range(2)], pool)
        ready_s = time.perf_counter() - began
        alexnets = [n for n in range(10 * networks) if FAMILIES[n % len(FAMILIES)] == "alexnet"][:networks]
        planned = timed([_network(number) for number in alexnets], pool)
        nothing = timed([Task(key=f"{i}", function=abs, arguments=(-i,)) for i in range(nothings)], pool)
    return {"workers": name, "ready_s": ready_s, "networks": planned, "nothing": nothing}


def kept(count: int) -> dict[str, float]:
    """Keep so many rows, and read them again: seconds of CPU, and bytes."""
    example = row(0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        began = time.process_time()
        with Results(path) as results:
            for number in range(count):
                results.add(f"{number}", example)
        written = time.process_time()
        size = path.stat().st_size
        with Results(path) as results:
            assert len(results) == count
        return {
            "rows": count,
            "add_s": written - began,
            "read_s": time.process_time() - written,
            "bytes": size,
        }


def _network(number: int) -> Task:
    return Task(key=f"network {number}", function=row, arguments=(number,))


def main() -> None:
    """Measure everything, and write the page."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--networks", type=int, default=12)
    add("--nothings", type=int, default=2000)
    add("--graphs", type=int, default=100_000, help="for how many graphs to reckon")
    options = parser.parse_args()
    rows = [measure(name, options.networks, options.nothings) for name in _POOLS]
    data = {"made": provenance("torch", "ray"), "graphs": options.graphs, "rows": rows, "kept": kept(1000)}
    print(*publish("scale", data))


if __name__ == "__main__":
    main()
