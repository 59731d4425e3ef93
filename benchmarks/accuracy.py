"""Whether training in mixed precision is as accurate as in FP32: the Campo paper's Table 3 in small.

    python -m benchmarks.accuracy [--seeds 40] [--formats-seeds 5] [--workers 2]

A multilayer perceptron, a convolutional network and a transformer learn scikit-learn's digits (1,797
images of 8 x 8) with SGD and momentum, from the same starting points and batches in FP32 and in mixed
precision. Without a GPU the mixed graphs are emulated: FP32 arithmetic, every FP16 tensor rounded to FP16.
A second page has the low formats beside each other: FP16, BF16 and dynamic fixed point (DFP-16).

Needs scikit-learn. A seed takes about half a minute of one core, and a minute and a half more where it is
one of the formats'. What is trained is kept below ``--work``: run it again and it goes on. Writes
results/accuracy.json and .md, accuracy_loss.svg, formats.json and .md. The graphs in ``data/`` are described
in ``data/README.md``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from benchmarks.digits import (
    BATCH,
    CASES,
    DEVICE,
    EPOCHS,
    FORMATS,
    HOWS,
    MLP,
    SMALL_LOSS,
    SMALL_RUNS,
    STRATEGIES,
    TRAIN,
    UNIT,
    Case,
    costless,
    digits,
    options,
    path_of,
    train,
)
from benchmarks.figures import curves
from benchmarks.pages import RESULTS, arguments, provenance, publish
from campo_onnx import __version__, optimize_model
from campo_onnx.scale.pools import pool_for
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run

SEEDS, FORMATS_SEEDS = 40, 5
BY_FORMAT = {"fp32": "FP32", "optimal": "FP16"} | {name: how.title for name, how in FORMATS.items()}
"""Low formats by how they are trained; FP16 is that of the exact plan."""


def spread(values: pl.Series) -> dict[str, Any]:
    """Mean and standard deviation over seeds."""
    return {"mean": values.mean(), "deviation": values.std()}


def paired(mixed: Iterable[float], fp32: Iterable[float]) -> dict[str, float]:
    """Mean difference seed by seed, with the half-width of its 95 % interval (Student's t)."""
    d = np.array(list(mixed)) - np.array(list(fp32))
    return {"mean": float(d.mean()), "half_width": float(stats.t.ppf(0.975, len(d) - 1) * stats.sem(d))}


def of(runs: pl.DataFrame, case: Case, name: str) -> pl.DataFrame:
    """Pick the runs of one kind, by seed."""
    return runs.filter(network=case.title, how=name).sort("seed")


def losses_of(runs: pl.DataFrame) -> NDArray[np.float64]:
    """Loss of each epoch by run; NaN where it was not finite."""
    return np.array(runs["losses"].to_list(), dtype=np.float64)


def difference(runs: pl.DataFrame, case: Case, strategy: str) -> dict[str, Any]:
    """Hold a strategy against FP32 in one network."""
    mixed, fp32 = of(runs, case, strategy), of(runs, case, "fp32")
    plan = costless(case.step, strategy)[1]
    real = optimize_model(path_of(case.step), options(STRATEGIES[strategy])).plan
    apart = abs(mixed["accuracy"].mean() - fp32["accuracy"].mean())
    told = ["accuracy", "losses", "skipped"]
    return {
        "network": case.title,
        "strategy": strategy,
        "nodes": len(plan.decisions),
        "low_nodes": len(plan.low_nodes),
        "low_nodes_at_real_costs": len(real.low_nodes),
        "difference": paired(mixed["accuracy"], fp32["accuracy"]),
        "is_within": bool(apart <= fp32["accuracy"].std()),
        "skipped": mixed["skipped"].mean(),
        "same_as_tf_amp": mixed.select(told).equals(of(runs, case, "tf-amp").select(told)),
    }


def scaled(runs: pl.DataFrame, name: str) -> dict[str, Any]:
    """Effect of loss scaling where the loss is small."""
    own_runs = of(runs, SMALL_LOSS, name)
    losses = losses_of(own_runs)
    ratios = losses[:, -1] / losses[:, 0]
    return {
        "strategy": HOWS[name].strategy,
        "scaling": HOWS[name].scaling,
        "accuracy": spread(own_runs["accuracy"]),
        "loss_ratio": float(np.nanmedian(ratios)),
        "lost": int(np.isnan(ratios).sum()),
        "runs": len(ratios),
    }


def check_units(runs: pl.DataFrame) -> None:
    """Make sure that in FP32 the unit of the loss changes nothing but the loss, to the bit."""
    small, usual = of(runs, SMALL_LOSS, "fp32 unscaled"), of(runs, MLP, "fp32")
    same_losses = np.array_equal(losses_of(small) * UNIT, losses_of(usual))
    if not small["accuracy"].equals(usual["accuracy"]) or not same_losses:
        raise AssertionError("the MLP and its variant with a small loss went different ways in FP32")


def results(runs: pl.DataFrame, seeds: int) -> dict[str, Any]:
    """Put everything together that the first page shows."""
    curves_of = {case: {name: how.title for name, how in STRATEGIES.items()} for case in CASES}
    curves_of[SMALL_LOSS] = {name: f"{how.title}, {how.scaling}" for name, how in SMALL_RUNS.items()}
    return {
        "made": provenance("numpy", "scikit-learn"),
        "train": TRAIN,
        "held_out": len(digits()[1]) - TRAIN,
        "batch": BATCH,
        "epochs": EPOCHS,
        "steps": EPOCHS * (TRAIN // BATCH),
        "seeds": seeds,
        "device": DEVICE,
        "titles": {name: how.title for name, how in STRATEGIES.items()},
        "accuracy": {c.title: {s: spread(of(runs, c, s)["accuracy"]) for s in STRATEGIES} for c in CASES},
        "differences": [difference(runs, case, s) for case in CASES for s in [*STRATEGIES][1:]],
        "scaling": [scaled(runs, name) for name in SMALL_RUNS],
        "losses": {
            case.title: {
                title: np.nanmedian(losses_of(of(runs, case, name)), axis=0).tolist()
                for name, title in titles.items()
            }
            for case, titles in curves_of.items()
        },
        "cpu_minutes": runs["cpu_s"].sum() / 60,
    }


def by_format(runs: pl.DataFrame, seeds: int) -> dict[str, Any]:
    """Put everything together that the page of formats shows."""
    rows = []
    for case in CASES:
        fp32 = of(runs, case, "fp32")["accuracy"]
        for name, title in BY_FORMAT.items():
            own_runs = of(runs, case, name)
            rows.append(
                {
                    "network": case.title,
                    "format": title,
                    "low_nodes": own_runs["low_nodes"][0],
                    "accuracy": spread(own_runs["accuracy"]),
                    "difference": None if name == "fp32" else paired(own_runs["accuracy"], fp32),
                    "loss": float(np.median(losses_of(own_runs)[:, -1])),
                }
            )
    return {"made": provenance("numpy", "scikit-learn"), "seeds": seeds, "epochs": EPOCHS, "rows": rows}


def tasks_of(seeds: int, formats_seeds: int) -> list[Task]:
    """Everything that is trained."""
    usual = [(case, name, seeds) for case in CASES for name in STRATEGIES]
    usual += [(SMALL_LOSS, name, seeds) for name in SMALL_RUNS]
    usual += [(case, name, formats_seeds) for case in CASES for name in FORMATS]
    return [
        Task(
            key=f"{case.step}, {name}, seed {seed}, campo-onnx {__version__}",
            function=train,
            arguments=(case.step, name, seed),
        )
        for case, name, count in usual
        for seed in range(count)
    ]


def main() -> None:
    """Train what is not trained yet, and write both pages."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=SEEDS)
    add("--formats-seeds", type=int, default=FORMATS_SEEDS, help="of BF16 and DFP-16: the first ones")
    add("--workers", type=int, default=1, help="processes of this machine")
    add("--work", type=Path, default=Path("build/accuracy"), help="where runs are kept")
    add("--out", type=Path, default=RESULTS, help="where the pages go")
    chosen = parser.parse_args()
    tasks = tasks_of(chosen.seeds, chosen.formats_seeds)
    with Results(chosen.work / "rows.jsonl") as kept, pool_for(chosen.workers) as pool:
        outcomes = run(tasks, pool, kept)
    if failures := {key: outcome.failure for key, outcome in outcomes.items() if outcome.failure}:
        raise SystemExit(f"{len(failures)} not trained, such as {next(iter(failures.items()))}")
    runs = pl.DataFrame([outcome.value for outcome in outcomes.values()])
    check_units(runs)
    data = results(runs.filter(pl.col("how").is_in([*STRATEGIES, *SMALL_RUNS])), chosen.seeds)
    print(*publish("accuracy", data, chosen.out))
    curves(data["losses"], chosen.out / "accuracy_loss.svg", axis="training loss", steps="epoch")
    formats = by_format(runs.filter(pl.col("seed") < chosen.formats_seeds), chosen.formats_seeds)
    print(*publish("formats", formats, chosen.out))


if __name__ == "__main__":
    main()
