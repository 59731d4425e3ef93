"""How good predicted errors are: the frontier's, beside emulated and computed ones, and beside other plans.

    python -m benchmarks.frontier [--part quality|training|mixed ...] [--only NAME ...] [--graph FILE ...]

Plans of captured steps and of small variants of the paper's networks, in FP16 and BF16: predicted error
beside the emulated one, and beside the one of OpenVINO on a CPU with BF16 units; random plans as long, plans
of lists; what it means for training; and what mixing both formats in one plan could gain. Every result is
kept when it is there: kill the command at any time, and run it again. Writes results/frontier.json, .md and
.svg.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.frontier import GRAPHS, LEARNERS
from benchmarks.pages import RESULTS, arguments, provenance, publish
from campo_onnx.ops.precision import Precision
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run

PARTS = ("quality", "training", "mixed")


def tasks_of(part: str, work: Path, key: str, only: Sequence[str], files: Sequence[str] = ()) -> list[Task]:
    """List the tasks of a part, the cheap ones first, and those of graphs in files last."""
    from benchmarks.frontier.mixed import mixed
    from benchmarks.frontier.quality import quality
    from benchmarks.frontier.training import NETWORKS, SEEDS, prepared, trained

    formats = (Precision.FP16, Precision.BF16)
    if part == "quality":
        jobs: list[tuple[Any, ...]] = [
            (quality, name, low) for name in (*GRAPHS, *LEARNERS, *files) for low in formats
        ]
    elif part == "training":
        jobs = [(prepared, name) for name in NETWORKS]
        jobs += [(trained, name, seed) for seed in range(SEEDS) for name in NETWORKS]
    else:
        jobs = [(mixed, name) for name in (*GRAPHS, *LEARNERS, *files)]
    return [
        Task(
            key=f"{_title(part, job.__name__, *words)}, {key}",
            function=job,
            arguments=(*words, work),
        )
        for job, *words in jobs
        if not only or words[0] in (*only, *files)
    ]


def _title(*words: object) -> str:
    return " ".join(word.value if isinstance(word, Precision) else str(word) for word in words)


def main() -> None:
    """Do what is not done yet, and write the page of what is there."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="of these steps")
    parser.add_argument("--graph", nargs="+", metavar="FILE", default=[], help="of these files as well")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--work", type=Path, default=Path("build/frontier"), help="where results are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the page goes")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {"XDG_DATA_HOME": str(work / "data"), "XDG_CACHE_HOME": str(work / "cache")}
    from benchmarks.figures import errors
    from benchmarks.frontier.summary import curves, summary
    from campo_onnx.version import VERSION

    for part in options.part:
        with Results(work / f"{part}.jsonl") as results, LocalPool(1) as pool:
            outcomes = run(tasks_of(part, work, VERSION, options.only, options.graph), pool, results, _told)
        for key, outcome in outcomes.items():
            if outcome.failure:
                print(f"{key}: {outcome.failure}\n{outcome.traceback}", flush=True)
    rows = {}
    for part in PARTS:
        with Results(work / f"{part}.jsonl") as results:
            rows[part] = [*results.values()]
    facts = summary(rows)
    print(*publish("frontier", {"made": provenance("scipy", "openvino"), **facts}, options.out))
    if facts["qualities"]:
        errors(curves(facts["qualities"]), options.out / "frontier.svg")


def _told(done: int, total: int) -> None:
    print(f"{done} of {total}", flush=True)


if __name__ == "__main__":
    main()
