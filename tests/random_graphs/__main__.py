"""Any number of random graphs: ``python -m tests.random_graphs --count 20000 --seed 0 --out FOLDER``.

What was found is written graph by graph, so that a run that was stopped goes on where it was. Each
graph is worked on by another process, which may crash: that too is an outcome.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx

from tests.random_graphs.builder import RandomGraph, RejectedError, run
from tests.random_graphs.generate import random_graph
from tests.random_graphs.minimize import minimized
from tests.random_graphs.oracles import Setting, check
from tests.random_graphs.raised import OracleError


def outcome_of(seed: int, folder: Path | None = None) -> dict[str, Any]:
    """Draw the graph of a seed and hold it against every oracle.

    Parameters
    ----------
    seed
        Of the graph and of how it is optimized.
    folder
        Where a graph that breaks an oracle is written, made small.
    """
    row: dict[str, Any] = {"seed": seed}
    try:
        graph = random_graph(seed)
        run(graph.model, graph.feeds)
    except RejectedError as error:
        return row | {"outcome": "not a valid graph", "detail": str(error)[:200]}
    except Exception as error:  # ONNX Runtime refuses what the checker takes
        return row | {"outcome": "not a valid graph", "detail": str(error)[:200]}
    setting = Setting.drawn(seed)
    row |= {"nodes": len(graph.model.graph.node), "strategy": setting.strategy, "low": setting.low.value}
    try:
        return row | {"outcome": check(graph, setting)}
    except OracleError as broken:
        if folder is not None:
            _write(_small(graph, setting, broken.kind), setting, broken, folder)
        return row | {"outcome": f"BROKEN {broken.kind}", "detail": broken.detail}
    except Exception as error:  # an oracle, or what it calls, fell over: nothing that may stop the run
        return row | {"outcome": f"BROKEN {type(error).__name__}", "detail": str(error)[:200]}


def _small(graph: RandomGraph, setting: Setting, kind: str) -> RandomGraph:
    def is_broken(smaller: RandomGraph) -> bool:
        try:
            check(smaller, setting)
        except OracleError as broken:
            return broken.kind == kind
        return False

    return minimized(graph, is_broken)


def _write(graph: RandomGraph, setting: Setting, broken: OracleError, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{broken.kind.replace(' ', '_')}_{graph.seed}"
    onnx.save(graph.model, stem.with_suffix(".onnx"))
    text = f"# seed {graph.seed}: {broken}\n# {setting}\n{onnx.printer.to_text(graph.model)}\n"
    stem.with_suffix(".txt").write_text(text, encoding="utf-8")


def main() -> int:
    """Work through the seeds that are not done, then print how often each outcome came."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first of COUNT seeds")
    parser.add_argument("--out", type=Path, default=Path("random_graphs_out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "outcomes.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {row["seed"] for row in rows}
    seeds = [s for s in range(options.seed, options.seed + options.count) if s not in done]
    started = time.monotonic()
    with log.open("a", encoding="utf-8") as file:
        pool = _pool()
        for number, seed in enumerate(seeds):
            try:
                row = pool.submit(outcome_of, seed, options.out / "broken").result()
            except BrokenProcessPool:
                row, pool = {"seed": seed, "outcome": "BROKEN the process crashed"}, _pool()
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            if number % 100 == 99:
                rate = (number + 1) / (time.monotonic() - started)
                print(f"{number + 1} of {len(seeds)}, {rate:.0f} a second", file=sys.stderr)
        pool.shutdown()
    wanted = range(options.seed, options.seed + options.count)
    counts = Counter(row["outcome"] for row in rows if row["seed"] in wanted)
    for outcome, count in counts.most_common():
        print(f"{count:8} {outcome}")
    return int(any(outcome.startswith("BROKEN") for outcome in counts))


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("fork"))


if __name__ == "__main__":
    sys.exit(main())
