"""The campaign: ``python -m tests.fuzz --count 20000 --seed 0 --out FOLDER``.

Results are written case by case, so that a run that was stopped goes on where it was. The files of a
case with a violation are kept. ``--only SEED`` runs one case again, ``--minimize SEED`` makes its file
small, and ``--summary`` counts what is there.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.campaign import Result, drawn, judged, renew, try_case
from tests.fuzz.cases import CHEAP, Choice
from tests.fuzz.minimize import minimized
from tests.fuzz.sandbox import memory_disk, prepare, warm
from tests.fuzz.subjects import make_folder
from tests.fuzz.verbs import VERBS
from tests.fuzz.worker import Worker

_WARM = ("explain", "optimize", "compare", "devices")


def main() -> int:
    """Run the campaign; returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--only", type=int, help="one case, again")
    parser.add_argument("--minimize", type=int, metavar="SEED", help="make the file of a case small")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no case after this time")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--cheap", action="store_true", help="only commands that run no graph")
    parser.add_argument("--containing", action="append", default=[], help="only commands with this text")
    options = parser.parse_args()
    choice = Choice(is_cheap=options.cheap, containing=tuple(options.containing))
    sound, log = options.out / "sound", options.out / "results.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    if not options.summary:
        _get_ready(sound, bare=options.cheap)
        with tempfile.TemporaryDirectory(dir=memory_disk()) as folder:
            work = Path(folder) / "work"
            if options.only is not None:
                print(try_case(options.only, sound, work, choice=choice))
                return 0
            if options.minimize is not None:
                print(_minimize(options.minimize, sound, work, options.out, choice))
                return 0
            done = {row["seed"] for row in rows}
            until = time.monotonic() + 60 * options.minutes
            worker = Worker(sound, work, choice=choice)
            with log.open("a", encoding="utf-8") as file:
                for seed in range(options.seed, options.seed + options.count):
                    if seed in done or time.monotonic() > until:
                        continue
                    result = worker.try_case(seed)
                    rows.append(_row(result))
                    if result.violations:
                        shutil.copytree(work / "run", options.out / f"case-{seed}", dirs_exist_ok=True)
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
            worker.end()
    print(json.dumps(_summary(rows), indent=1))
    return int(any(row["violations"] for row in rows))


def _get_ready(sound: Path, *, bare: bool) -> None:
    prepare()
    sound.parent.mkdir(parents=True, exist_ok=True)
    if not sound.is_dir():
        make_folder(sound, bare=bare)
    with tempfile.TemporaryDirectory(dir=memory_disk()) as folder:
        scratch = Path(folder) / "run"
        shutil.copytree(sound, scratch)
        commands = [" ".join(case.words) for case in CHEAP if case.words[0] in _WARM]
        warm(scratch, [c for c in commands if "profile" not in c and "store" not in c])


def _row(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "seed": result.seed,
        "command": result.case.command[:1000],
        "file": result.case.file,
        "how": result.how[:200],
        "code": result.code,
        "seconds": round(result.seconds, 2),
        "violations": result.violations,
    }
    return row | ({"err": result.err[-1500:]} if result.violations else {})


def _minimize(seed: int, sound: Path, work: Path, out: Path, choice: Choice) -> str:
    """Make the mutated file of a case small, and write it beside the results; says where."""
    case, _ = drawn(seed, choice)
    wanted = try_case(seed, sound, work, choice=choice).violations
    if not wanted:
        return f"case {seed} has no violation"
    renew(work / "run", sound)
    try_again = work / "again" / "run"
    first = out / f"case-{seed}" / case.file

    def fails(data: bytes) -> bool:
        renew(try_again, sound)
        (try_again / case.file).write_bytes(data)
        return judged(case, try_again)[2] == wanted

    data = minimized(first.read_bytes(), (sound / case.file).read_bytes(), first.suffix, fails)
    target = out / f"small-{seed}{first.suffix}"
    target.write_bytes(data)
    return f"{wanted}: {first.stat().st_size} bytes are now {len(data)}, in {target}, for {case.command}"


def _summary(rows: list[dict[str, object]]) -> dict[str, object]:
    def counts(field: str) -> dict[str, int]:
        return dict(Counter(str(row[field]) for row in rows).most_common())

    seconds = [float(str(row["seconds"])) for row in rows]
    verbs = Counter(str(row["command"]).split()[0] for row in rows)
    return {
        "cases": len(rows),
        "by exit code": counts("code"),
        "by command": dict(verbs.most_common()),
        "by file": counts("file"),
        "used through the library": sum(verbs[verb] for verb in VERBS),
        "seconds": {"median": statistics.median(seconds), "longest": max(seconds)} if rows else {},
        "violations": dict(
            Counter(str(row["violations"]) for row in rows if row["violations"]).most_common()
        ),
    }


if __name__ == "__main__":
    raise SystemExit(main())
