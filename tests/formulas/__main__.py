"""Any number of formulas: ``python -m tests.formulas --count 20000 --seed 0 --out FOLDER``.

Outcomes are written one by one, so that a run that was stopped goes on where it was.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.formulas.oracle import Tried, outcome_of


def main() -> int:
    """Work through the seeds that are not done, then print how often each outcome came, and what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.formulas", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first of COUNT seeds")
    parser.add_argument("--out", type=Path, default=Path("formulas_out"))
    parser.add_argument("--rules-alone", action="store_true", help="try no plan on data before it is run")
    parser.add_argument("--reworded", type=float, default=0.0, help="the share of nodes in other words")
    options = parser.parse_args()
    trials = (Tried.NOTHING,) if options.rules_alone else tuple(Tried)
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "outcomes.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {row["seed"] for row in rows}
    wanted = range(options.seed, options.seed + options.count)
    with log.open("a", encoding="utf-8") as file:
        for seed in wanted:
            if seed in done:
                continue
            try:
                row = outcome_of(seed, trials, reworded_share=options.reworded)
            except Exception as error:  # one formula must not stop the run
                row = {"seed": seed, "outcome": f"BROKEN {type(error).__name__}: {str(error)[:160]}"}
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    rows = [row for row in rows if row["seed"] in wanted]
    for outcome, count in Counter(row["outcome"] for row in rows).most_common():
        print(f"{count:8} {outcome}")
    wrong = Counter(row["template"] for row in rows if "wrong" in row["outcome"])
    for template, count in wrong.most_common():
        print(f"{count:8} {template}")
    return int(any("BROKEN" in row["outcome"] or Tried.OWN.value in row["outcome"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
