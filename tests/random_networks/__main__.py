"""Any number of random networks: ``python -m tests.random_networks --count 1000 --seed 0 --out FILE``.

Rows are written network by network, so that a run that was stopped goes on where it was; ``--only SEED``
shows one.
"""

import argparse
import json
import logging
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.random_networks.network import network
from tests.random_networks.oracle import NotDrawnError, WrongError, outcomes


def row_of(seed: int, *, verbose: bool = False) -> dict[str, Any]:
    """Draw the network of a seed and hold its steps against torch."""
    row: dict[str, Any] = {"seed": seed}
    try:
        drawn = network(seed)
        if verbose:
            print(drawn.module, drawn.loss_name)
        row |= {"loss": drawn.loss_name, "outcomes": outcomes(drawn)}
    except NotDrawnError as error:
        row |= {"not_drawn": str(error)[:300]}
    except WrongError as error:
        row |= {"wrong": str(error)}
    except Exception as error:  # whatever else comes out of an export is wrong, too
        row |= {
            "wrong": f"{type(error).__name__}: {str(error)[:500]}",
            "trace": traceback.format_exc()[-1500:],
        }
    return row


def main() -> None:
    """Work through the seeds that are not done, then count."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_networks", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first of COUNT seeds")
    parser.add_argument("--only", type=int, help="one seed")
    parser.add_argument("--out", type=Path, default=Path("random_networks.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.only is not None:
        row = row_of(args.only, verbose=True)
        print(row.pop("trace", ""), json.dumps(row, indent=1))
        return
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {row["seed"] for row in rows}
    with args.out.open("a") as file:
        for seed in range(args.seed, args.seed + args.count):
            if seed not in done:
                began = time.process_time()
                row = row_of(seed)
                row["cpu_s"] = round(time.process_time() - began, 2)
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                if "wrong" in row:
                    print(seed, row["wrong"], flush=True)
    counts = Counter(
        "wrong"
        if "wrong" in row
        else "torch cannot train it"
        if "not_drawn" in row
        else outcome.split(":")[0]
        for row in rows
        for outcome in row.get("outcomes", {"": ""}).values()
    )
    print(dict(counts))


if __name__ == "__main__":
    main()
