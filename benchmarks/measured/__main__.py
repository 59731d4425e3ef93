"""BF16 measured on this machine: torch's steps and ours, in turns.

    python -m benchmarks.measured [--quick] [--population 300] [--limit-s 3600] [--work DIR] [--report]

Every network's step (loss and gradients) is run by torch eager, torch autocast, torch.compile with and
without autocast, and by us: FP32 on ONNX Runtime and on OpenVINO, and on OpenVINO with everything in BF16
that may be, and by the plans of an op list, of Campo's traverses and of the exact optimum. Each is a process
of its own in the environment that this command has, stopped while another is timed; they take turns in
rotating order. Then two networks with other batches, single operators with and without Casts, and random
networks, whose plans share a process, since one runtime runs them all. At last their FP32 steps are profiled.
Every result is kept when it comes: kill the command at any time, run it again on the same machine with the
same versions, and it goes on. A network is on the page as a whole or not at all. Needs a CPU with BF16
units, OpenVINO, PyTorch and transformers, and a quiet machine. Writes results/measured.json, .md and .svg,
and the table of the README. With ``--only network`` the page keeps what it says of everything else.

``--quick`` takes a quarter of an hour on two cores: fewer networks and rounds, and 20 random networks.
Without a calibration of this machine it first makes one, in limited time.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured import BATCHES, NETWORKS, QUICK, QUICK_BATCHES, RANDOM
from benchmarks.pages import RESULTS, arguments
from campo_onnx.errors import CampoError
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Outcome, Task, call, run

_TIME_UP = "the time was up"
_TO_BE_CONTINUED = 75  # EX_TEMPFAIL: run the same command again
_PREPARERS = 2
_PREPARED_S = 60.0
_WITH_LAYERS = 60

PROFILE = "profile"
"""Kind of a measurement that is a profile of an FP32 step."""


class Part(NamedTuple):
    """One measurement, and what it needs.

    Parameters
    ----------
    task
        Its key begins with ``KIND NAME,``.
    seconds
        How long it is expected to take; it does not begin when less is left.
    networks
        Whose graphs it reads.
    """

    task: Task
    seconds: float
    networks: tuple[str, ...]


class InTime:
    """A pool of this process that begins no task for which too little time is left.

    Parameters
    ----------
    end_s
        End of the time, on the monotonic clock.
    seconds
        What each task takes, by key.
    """

    def __init__(self, end_s: float, seconds: dict[str, float]) -> None:
        self._end_s, self._seconds = end_s, seconds

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Do tasks one after another."""
        for task in tasks:
            if time.monotonic() + self._seconds[task.key] > self._end_s:
                yield task, Outcome(failure=_TIME_UP)
                continue
            outcome = call(task)
            print(f"{task.key.partition(',')[0]}: {outcome.failure or 'done'}", flush=True)
            yield task, outcome


def parts_of(*, is_quick: bool, names: Sequence[str], population: int, graphs: Path, key: str) -> list[Part]:
    """List everything to measure, most important first."""
    from benchmarks.measured.layers import measured_layers
    from benchmarks.measured.ops import measured_ops
    from benchmarks.measured.profiles import profiled
    from benchmarks.measured.sides import BESIDE_TORCH, DRAWN, SWEPT, THREADS
    from benchmarks.measured.turns import Effort, in_turns

    long = Effort(0.2, 20.0, 30, 300.0) if is_quick else Effort(0.5, 120.0, 60, 1200.0)
    short = Effort(0.03, 6.0, 12, 60.0) if is_quick else Effort(0.2, 15.0, 30, 300.0)

    def timed(kind: str, name: str, sides: Sequence[str], effort: Effort, seconds: float) -> Part:
        task = Task(
            key=f"{kind} {name}, {' '.join(sides)}, {effort}, {key}",
            function=in_turns,
            arguments=(name, graphs, tuple(sides), effort, kind == "network"),
        )
        return Part(task, seconds + effort.budget_s, (name,))

    batches = QUICK_BATCHES if is_quick else BATCHES
    ops = Task(key=f"ops {' '.join(names)}, {key}", function=measured_ops, arguments=(names, graphs, THREADS))
    random = [f"{RANDOM}{number}" for number in range(population)]
    some = tuple(random[:_WITH_LAYERS])
    layers = Task(key=f"layers {len(some)}, {key}", function=measured_layers, arguments=(some, graphs))
    swept = tuple(f"{name}@{batch}" for name, of in batches.items() for batch in of)

    def profile(name: str) -> Part:
        task = Task(key=f"{PROFILE} {name}, {key}", function=profiled, arguments=(name, graphs))
        return Part(task, 5.0, (name,))

    return [
        *(timed("network", name, BESIDE_TORCH, long, 40.0) for name in names),
        Part(ops, 45.0, ()),
        *(timed("batch", name, SWEPT, short, 8.0) for name in swept),
        *(timed("drawn", name, DRAWN, short, 8.0) for name in random),
        *([Part(layers, 3.0 * len(some), some)] if some else []),
        *map(profile, (*names, *swept, *random)),
    ]


def prepare_all(names: Sequence[str], graphs: Path, key: str, costs: str, end_s: float) -> None:
    """Export and plan networks whose graphs are missing, two at a time."""
    from benchmarks.measured.plans import plans_of, prepare

    missing = [name for name in names if plans_of(name, graphs, key) is None]
    tasks = (
        Task(key=name, function=prepare, arguments=(name, graphs, key, costs))
        for name in missing
        if time.monotonic() + _PREPARED_S < end_s
    )
    with LocalPool(_PREPARERS) as pool:
        for task, outcome in pool.outcomes(tasks):
            print(f"prepared {task.key}{': ' * bool(outcome.failure)}{outcome.failure}", flush=True)


def measure(
    parts: Sequence[Part], results: Results, graphs: Path, key: str, costs: str, end_s: float
) -> bool:
    """Do what is not done yet; tell whether there is nothing left to do."""
    from benchmarks.measured.plans import plans_of

    left = [part for part in parts if part.task.key not in results]
    for names in _blocks(left):
        prepare_all(sorted(names, key=list(names).index), graphs, key, costs, end_s)
        ready = [
            part
            for part in left
            if set(part.networks) <= set(names)
            and all(plans_of(name, graphs, key) is not None for name in part.networks)
        ]
        pool = InTime(end_s, {part.task.key: part.seconds for part in ready})
        run([part.task for part in ready], pool, results)
    return all(part.task.key in results for part in parts)


def _blocks(parts: Sequence[Part]) -> Iterator[tuple[str, ...]]:
    """Give the networks of each kind, which are prepared together, and those of the first kind first."""
    kinds: dict[str, list[str]] = {}
    for part in parts:
        kinds.setdefault(part.task.key.partition(" ")[0], []).extend(part.networks)
    yield from map(tuple, kinds.values())


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a quarter of an hour: fewer networks, fewer rounds")
    add("--every-network", action="store_true", help="with --quick, not only six of them")
    add("--population", type=int, metavar="N", help="random networks; by default 300, or 20 with --quick")
    add("--costs", default="auto", help="where costs of plans come from, as of optimize")
    add("--calibrate-s", type=float, metavar="S", help="time for a calibration; by default 3600, or 150")
    add("--limit-s", type=float, help="time after which nothing further begins; 840 with --quick, else 36000")
    add("--only", default="", metavar="KIND", help="measure only what is called so: network, batch mlp")
    add("--work", type=Path, default=Path("build/measured"), help="where graphs and results are kept")
    add("--results", type=Path, default=RESULTS, help="where the page goes")
    add("--readme", type=Path, default=Path("README.md"), help="whose table is written")
    add("--report", action="store_true", help="measure nothing, write the page anew")
    add("--learn", type=Path, metavar="FILE.json", help="where a calibration corrected by these steps goes")
    options = parser.parse_args()
    end_s = time.monotonic() + (options.limit_s or (840.0 if options.quick else 36000.0))
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    # Calibrations and timings of its own: those of other days may come from a busy machine.
    os.environ |= {"XDG_DATA_HOME": str(work / "data"), "XDG_CACHE_HOME": str(work / "cache")}
    try:
        done = _measure(options, work, end_s)
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("all done" if done else "to be continued: run the same command again")
    return 0 if done else _TO_BE_CONTINUED


def _measure(options: Any, work: Path, end_s: float) -> bool:
    from benchmarks.measured.calibration import calibrate_here, workload
    from benchmarks.measured.page import publish_measured
    from benchmarks.measured.plans import calibration_here, plans_of
    from benchmarks.measured.turns import here
    from campo_onnx.version import source_digest

    calibration, tried = calibration_here(), work / "calibration-tried"
    # Once: with other costs everything would have to be measured anew.
    if options.costs == "auto" and not (calibration or options.report or tried.is_file()):
        limit_s = options.calibrate_s or (150.0 if options.quick else 3600.0)
        print(f"calibrating, {limit_s:.0f} s at most", flush=True)
        calibration = calibrate_here(workload(is_quick=options.quick), limit_s)
        print(calibration or "no calibration to rely on: costs come from public figures", flush=True)
        tried.touch()
    # Without models every node would be timed, which takes a minute a network: that has to be asked for.
    costs = "datasheet" if options.costs == "auto" and not calibration else options.costs
    facts, graphs = here(), work / "graphs"
    versions = " ".join(f"{name} {number}" for name, number in facts["made"]["versions"].items())
    key = f"{facts['machine']['cpu']}, {versions}, {source_digest()}, {costs} {calibration}"
    population = options.population if options.population is not None else (20 if options.quick else 300)
    names = QUICK if options.quick and not options.every_network else tuple(NETWORKS)
    parts = parts_of(is_quick=options.quick, names=names, population=population, graphs=graphs, key=key)
    chosen = [part for part in parts if part.task.key.startswith(options.only)]
    with Results(work / "results.jsonl") as results:
        done = options.report or measure(chosen, results, graphs, key, costs, end_s)
        values = {
            part.task.key.partition(",")[0]: results[part.task.key]
            for part in parts
            if part.task.key in results
        }
    plans = {name: plans_of(name, graphs, key) for part in parts for name in part.networks}
    compared = _learned({k: v for k, v in values.items() if plans.get(_network(k))}, graphs, options.learn)
    for path in publish_measured(
        values, plans, calibration, population, options.results, options.readme, compared
    ):
        print(f"wrote {path}")
    return done


def _network(key: str) -> str:
    """Name of the network of a result."""
    return key.partition(" ")[2]


def _learned(values: Mapping[str, Any], graphs: Path, corrected: Path | None) -> Any:
    """Compare models of costs on what was measured, and write a corrected calibration where one is wanted."""
    from benchmarks.measured.factors import fit_in_step
    from benchmarks.measured.learning import learned, measured_plans
    from benchmarks.measured.plans import catalogued
    from campo_onnx.files import write_text

    entry = catalogued()
    if entry is None:
        return None
    timed = {key: value for key, value in values.items() if not key.startswith(f"{PROFILE} ")}
    rounds_ms = {_network(key): value["rounds_ms"] for key, value in timed.items()}
    profiles = {_network(key): value for key, value in values.items() if key not in timed}
    plans = [*measured_plans(rounds_ms, graphs, entry.calibration, profiles)]
    if corrected is not None and plans:
        in_step = fit_in_step([plan.step for plan in plans])
        write_text(replace(entry.calibration, in_step=in_step).to_json(), corrected)
        print(f"wrote {corrected}")
    return learned(plans)


if __name__ == "__main__":
    sys.exit(main())
