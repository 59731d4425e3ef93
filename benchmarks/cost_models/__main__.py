"""The Campo paper's performance models at the paper's number of samples, on the CPU provider.

    python -m benchmarks.cost_models --store timings.sqlite --work models_out

Fits what `benchmarks.cost_models.collect` timed, and measures nothing. Needs scikit-learn (the extra
`benchmarks`) for the perceptron. What is fitted is kept below ``--work``: run again, it goes on where it was
stopped. Writes results/cost_models.json and .md. Figures are of this machine's CPU, where ONNX Runtime
computes most FP16 nodes in FP32 between Casts.
"""

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.cost_models.collect import FITTED, LOW, OPS, SAMPLING, TESTED, timers
from benchmarks.cost_models.curves import (
    IN_USE,
    LINEAR,
    MLP,
    MLP_LOG,
    SIZES,
    Pairs,
    Row,
    cast_curves,
    curve,
    fitted,
    linearity,
    noise,
    on_long,
    samples_in,
    score,
    sufficient,
)
from benchmarks.pages import arguments, provenance, publish
from campo_onnx.calibrate.fit import PAPER_ACCURACY, Sample
from campo_onnx.calibrate.samples import samples_of
from campo_onnx.files import write_text
from campo_onnx.targets.detect import target_of

FEWEST = 250
"""Samples below which an operator is left out."""

PAPER = {"regression": PAPER_ACCURACY, "perceptron": 0.71, "general": 0.43}
"""Results of the paper (section 4.2.2)."""

LINES, NETWORKS = (IN_USE, *LINEAR), (MLP, MLP_LOG)
MODELS = (*LINES, *NETWORKS)

PERCEPTRONS = OPS[:3]
"""Operators that have perceptrons, too: a fit takes seconds."""


def loaded(op: str, store: Path, work: Path) -> tuple[Pairs, Row | None]:
    """Samples of an operator and their noise, read from the store once."""
    kept = work / f"{op}.samples"
    if kept.exists():
        times, own_noise = pickle.loads(kept.read_bytes())  # our own file, in a folder of the caller's
        return tuple([Sample(**one) for one in part] for part in times), own_noise
    first, again = timers(store)
    pairs, own_noise = ([], []), None
    if any(map(first.find, samples_of(op, replace(SAMPLING, count=10)))):  # drawing all shapes takes time
        signatures = samples_of(op, SAMPLING)
        pairs = samples_in(signatures, first, target_of(first.machine))
        own_noise = noise(signatures, first, again)
    plain = [[{**asdict(s), "events": dict(s.events)} for s in part] for part in pairs]
    if len(pairs[1]) >= FEWEST:
        kept.write_bytes(pickle.dumps((plain, own_noise)))
    return pairs, own_noise


def row_of(op: str, store: Path, work: Path) -> Row | None:
    """Curves of an operator; None where it has too few samples."""
    kept = work / f"{op}.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    pairs, own_noise = loaded(op, store, work)
    tests, pool = pairs
    if len(pool) < FEWEST:
        return None
    curves = {name: curve(pairs, name) for name in LINES}
    row = {
        "op": op,
        "fitted": len(pool),
        "tested": len(tests),
        "curves": curves,
        "sufficient": {name: sufficient(by_size) for name, by_size in curves.items()},
        "noise": own_noise,
        "longest_us": max(sample.fp32_us for sample in (*tests, *pool)),
        "pearson": linearity(pairs),
        "long": on_long(pairs, LINES),
    }
    text = json.dumps(row)
    write_text(text, kept)
    print(op, len(pool), {name: f"{max(c.items())[1]:.3f}" for name, c in curves.items() if c}, flush=True)
    return json.loads(text)


def perceptrons_of(op: str, store: Path, work: Path) -> Row:
    """Curves of perceptrons, and their M_A on long nodes; empty where samples are too few."""
    kept = work / f"{op}.perceptrons.json"
    if not kept.exists():
        pairs, _ = loaded(op, store, work)
        if len(pairs[1]) < FEWEST:
            return {"curves": {}, "long": {}}
        curves = {name: curve(pairs, name) for name in NETWORKS}
        write_text(json.dumps({"curves": curves, "long": on_long(pairs, NETWORKS)}), kept)
        print(op, curves, flush=True)
    return json.loads(kept.read_text(encoding="utf-8"))


def mean_curve(rows: Sequence[Row], name: str) -> dict[str, float]:
    """Mean over operators, at the sizes that all have."""
    shared = [size for size in map(str, SIZES) if rows and all(size in r["curves"][name] for r in rows)]
    return {size: fmean(row["curves"][name][size] for row in rows) for size in shared}


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of those that are not None."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def general(pairs_by_op: Mapping[str, Pairs]) -> dict[str, float]:
    """One model for all operators."""
    pool = [sample for _, fit in pairs_by_op.values() for sample in fit]
    tests = [sample for test, _ in pairs_by_op.values() for sample in test]
    models = {name: fitted(pool, name) for name in LINEAR}
    return {name: score(predict, tests) for name, predict in models.items() if predict is not None}


def all_rows(store: Path, work: Path) -> Iterator[tuple[str, Row | None]]:
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(partial(row_of, store=store, work=work), OPS))
        networks = pool.map(partial(perceptrons_of, store=store, work=work), PERCEPTRONS)
        further = dict(zip(PERCEPTRONS, networks, strict=True))
    for op, row in zip(OPS, rows, strict=True):
        if row is not None and op in further:
            row = {**row, **{key: row[key] | further[op][key] for key in ("curves", "long")}}
        yield op, row


def main() -> None:
    """Fit everything, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--store", type=Path, required=True, metavar="FILE")
    parser.add_argument("--work", type=Path, default=Path("models_out"), help="where fits are kept")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    by_op = dict(all_rows(asked.store, asked.work))
    rows = [row for row in by_op.values() if row is not None]
    whole = [row for row in rows if str(max(SIZES)) in row["curves"][IN_USE]]
    both = [row for row in whole if MLP in row["curves"]]
    first, again = timers(asked.store)
    means = {name: mean_curve(whole, name) for name in LINES}
    data = {
        "made": provenance("scikit-learn", "scipy", "numpy"),
        "machine": {"device": first.machine.device, "threads": first.machine.threads},
        "precision": LOW.value,
        "asked": {"fitted": FITTED, "tested": TESTED},
        "largest": {"bytes": SAMPLING.largest_bytes, "flops": SAMPLING.largest_flops},
        "models": [*MODELS],
        "sizes": [*SIZES],
        "timings": len(first.store),
        "repeated": len(again.store),
        "rows": rows,
        "whole": len(whole),
        "mean": means,
        "mean_suffices": sufficient({int(size): score for size, score in means[IN_USE].items()}),
        "mean_noise": mean_of(row["noise"] and row["noise"]["bound"] for row in rows),
        "mean_long": {name: mean_of(row["long"].get(name) for row in rows) for name in LINES},
        "long_of_both": {name: mean_of(row["long"].get(name) for row in both) for name in MODELS},
        "mean_of_both": {name: mean_curve(both, name) for name in MODELS},
        "perceptrons": len(both),
        "general": general({row["op"]: loaded(row["op"], asked.store, asked.work)[0] for row in rows}),
        "casts": cast_curves(first),
        "left_out": [op for op, row in by_op.items() if row is None],
        "paper": PAPER,
    }
    print(*publish("cost_models", data))


if __name__ == "__main__":
    main()
