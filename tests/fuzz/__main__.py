"""The campaign: ``python -m tests.fuzz --count 20000 --seed 0 --out FOLDER``.

Results are written case by case, so that a run that was stopped goes on where it was. The files of a
case with a violation are kept. ``--only SEED`` runs one case again.
"""

import argparse
import json
import shutil
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.campaign import CHEAP, try_case
from tests.fuzz.sandbox import prepare
from tests.fuzz.subjects import CASES, make_folder


def main() -> int:
    """Run the campaign; returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--only", type=int, help="one case, again")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no case after this time")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--cheap", action="store_true", help="only commands that run no graph")
    given = parser.parse_args()
    cases = CHEAP if given.cheap else CASES
    prepare()
    sound, log = given.out / "sound", given.out / "results.jsonl"
    given.out.mkdir(parents=True, exist_ok=True)
    if not sound.is_dir():
        make_folder(sound, with_profile=not given.cheap)
    if given.only is not None:
        print(try_case(given.only, sound, given.out / "work", cases=cases))
        return 0
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    done = {row["seed"] for row in rows}
    until = time.monotonic() + 60 * given.minutes
    with log.open("a", encoding="utf-8") as file:
        for seed in range(given.seed, given.seed + given.count):
            if seed in done or time.monotonic() > until:
                continue
            result = try_case(seed, sound, given.out / "work", cases=cases)
            row = {
                "seed": seed,
                "command": result.case.command,
                "file": result.case.file,
                "how": result.how[:200],
                "code": result.code,
                "seconds": round(result.seconds, 2),
                "violations": result.violations,
            }
            if result.violations:
                row["err"] = result.err[-1500:]
                shutil.copytree(given.out / "work" / "run", given.out / f"case-{seed}", dirs_exist_ok=True)
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
    print(json.dumps(_summary(rows), indent=1))
    return int(any(row["violations"] for row in rows))


def _summary(rows: list[dict[str, object]]) -> dict[str, object]:
    broken = Counter(str(row["violations"]) for row in rows if row["violations"])
    return {
        "cases": len(rows),
        "by exit code": dict(Counter(str(row["code"]) for row in rows).most_common()),
        "by file": dict(Counter(str(row["file"]) for row in rows).most_common()),
        "violations": dict(broken.most_common()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
