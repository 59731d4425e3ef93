"""Whether training in mixed precision is as accurate as in FP32: the Campo paper's Table 3 in small.

    python -m benchmarks.accuracy [--quick]

A multilayer perceptron, a convolutional network and a transformer learn scikit-learn's digits (1,797
images of 8 x 8) with SGD and momentum, from the same starting points and batches in FP32 and in mixed
precision. Without a GPU the mixed graphs are emulated: FP32 arithmetic, every FP16 tensor rounded to FP16.

Needs scikit-learn and takes a few minutes on two cores. Writes results/accuracy.json and .md and
results/accuracy_loss.svg; with ``--quick`` it takes two seeds and writes to ``--out``. The graphs in
``data/`` are described in ``data/README.md``.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
from numpy.typing import NDArray

from benchmarks.figures import curves
from benchmarks.pages import RESULTS, arguments, made, publish
from campo_onnx import Options, Plan, device, oplists, optimize_model
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.pipeline import decide, problem_of
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.numerics import emulate
from campo_onnx.training.session import TrainingSession

HERE = Path(__file__).parent
TRAIN, BATCH, EPOCHS, SEEDS, WORKERS = 1437, 64, 40, 40, 2
QUICK_SEEDS = 2
DEVICE = "h200"
TITLES = {"fp32": "FP32", "tf-amp": "TF_AMP", "campo": "Campo", "optimal": "optimal"}
STRATEGIES = tuple(TITLES)
NO_SCALING, DYNAMIC = "no loss scaling", "dynamic loss scaling"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network: its files in ``data/`` and its learning rate."""

    title: str
    step: str
    evaluation: str
    lr: float = 0.05


MLP = Case(title="MLP", step="mlp_step", evaluation="mlp_eval")
CASES = (
    MLP,
    Case(title="CNN with BatchNorm", step="cnn_step", evaluation="cnn_eval"),
    Case(title="Transformer", step="transformer_step", evaluation="transformer_eval"),
)
UNIT = 2**18
# The same network; its loss is 2^-18 times the cross entropy, its learning rate 2^18 times the MLP's. Powers
# of two are exact, so in FP32 the weights go the MLP's way to the bit.
SMALL_LOSS = replace(MLP, title="MLP, small loss", step="mlp_small_loss_step", lr=MLP.lr * UNIT)
SMALL_RUNS = (("fp32", NO_SCALING), ("campo", NO_SCALING), ("campo", DYNAMIC))
"""What it is trained with."""


def options(strategy: str) -> Options:
    """What is planned with."""
    return Options(device=device(DEVICE), lists=oplists("campo"), strategy=strategy)


@cache
def costless(case: Case, strategy: str) -> tuple[onnx.ModelProto, Plan]:
    """Plan as if Casts cost nothing, and emulate: as much FP16 as lists and safety rules allow."""
    chosen = replace(options(strategy), min_gain=0.0)
    imported = import_model(HERE / "data" / f"{case.step}.onnx")
    problem = problem_of(imported, chosen)
    free = replace(problem, costs=replace(problem.costs, cast=CastModel(r_us=0.0, c_i_us=0.0)))
    plan = decide(free, imported, chosen)
    if strategy != "fp32" and not plan.low_nodes:
        raise AssertionError(f"{strategy} lowers nothing of {case.title}: FP32 would be compared with itself")
    return emulate(rewrite(imported, plan)), plan


@cache
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images in [0, 1] and labels, in one random order for all runs."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)


def first_state(model: onnx.ModelProto, rng: np.random.Generator) -> Arrays:
    """Matrices and kernels uniform within 1/sqrt(fan-in), biases 0, gains and variances 1."""
    state: Arrays = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if info.name.startswith(("param.", "buf.")):
            if len(shape) > 1:
                bound = np.prod(shape[1:]) ** -0.5
                state[info.name] = rng.uniform(-bound, bound, shape).astype(dtype)
            else:
                is_one = info.name.endswith(("weight", "running_var"))
                state[info.name] = np.full(shape, 1 if is_one else 0, dtype)
    return state


def train(case: Case, strategy: str, scaling: str, seed: int) -> dict[str, Any]:
    """Train once and measure accuracy on the images held out, with the FP32 weights in FP32."""
    images, labels = digits()
    model, _ = costless(case, strategy)
    rng = np.random.default_rng(seed)
    training = TrainingSession(
        model,
        first_state(model, rng),
        settings={"lr": case.lr},
        provider="cpu",
        threads=1,
        scaler=LossScaler.static(1.0) if scaling == NO_SCALING else LossScaler(),
    )
    losses, skipped = [], 0
    for _ in range(EPOCHS):
        order = rng.permutation(TRAIN)
        steps = [order[i : i + BATCH] for i in range(0, TRAIN - BATCH + 1, BATCH)]
        results = [*training.train({"input.images": images[b], "target.labels": labels[b]} for b in steps)]
        losses.append(float(np.mean([r.loss for r in results])))
        skipped += sum(r.skipped for r in results)
    key = {"network": case.title, "strategy": strategy, "scaling": scaling, "seed": seed}
    return {**key, "accuracy": accuracy(case, training.state()), "skipped": skipped, "losses": losses}


def accuracy(case: Case, state: Mapping[str, NDArray[Any]]) -> float:
    """Percent of the images held out that a network tells right."""
    model = onnx.load(HERE / "data" / f"{case.evaluation}.onnx")
    images, labels = digits()
    feeds = {i.name: state[i.name] for i in model.graph.input if i.name in state}
    (logits,) = run(model, feeds | {"input.images": images[TRAIN:]}, machine("cpu", 1)).values()
    return float((logits.argmax(1) == labels[TRAIN:]).mean() * 100)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    array = np.array(list(values))
    return {"mean": float(array.mean()), "deviation": float(array.std(ddof=1))}


def paired(mixed: Iterable[float], fp32: Iterable[float]) -> dict[str, float]:
    """Mean difference seed by seed, with the half-width of its 95 % interval (normal approximation)."""
    d = np.array(list(mixed)) - np.array(list(fp32))
    return {"mean": float(d.mean()), "half_width": float(1.96 * d.std(ddof=1) / len(d) ** 0.5)}


def of(runs: pl.DataFrame, case: Case, strategy: str, scaling: str = DYNAMIC) -> pl.DataFrame:
    """Pick the runs of one kind, by seed."""
    return runs.filter(network=case.title, strategy=strategy, scaling=scaling).sort("seed")


def difference(runs: pl.DataFrame, case: Case, strategy: str) -> dict[str, Any]:
    """Hold a strategy against FP32 in one network."""
    mixed, fp32 = of(runs, case, strategy), of(runs, case, "fp32")
    plan = costless(case, strategy)[1]
    real = optimize_model(HERE / "data" / f"{case.step}.onnx", options(strategy)).plan
    apart = abs(mixed["accuracy"].mean() - fp32["accuracy"].mean())
    return {
        "network": case.title,
        "strategy": strategy,
        "nodes": len(plan.decisions),
        "low_nodes": len(plan.low_nodes),
        "low_nodes_at_real_costs": len(real.low_nodes),
        "difference": paired(mixed["accuracy"], fp32["accuracy"]),
        "is_within": bool(apart <= fp32["accuracy"].std()),
        "skipped": mixed["skipped"].mean(),
        "same_as_tf_amp": mixed.drop("strategy").equals(of(runs, case, "tf-amp").drop("strategy")),
    }


def scaled(runs: pl.DataFrame, strategy: str, scaling: str) -> dict[str, Any]:
    """What loss scaling does where the loss is small."""
    found = of(runs, SMALL_LOSS, strategy, scaling)
    ratios = np.array([losses[-1] / losses[0] for losses in found["losses"]])
    return {
        "strategy": strategy,
        "scaling": scaling,
        "accuracy": spread(found["accuracy"]),
        "loss_ratio": float(np.nanmedian(ratios)),
        "lost": int(np.isnan(ratios).sum()),
        "runs": len(ratios),
    }


def check_units(runs: pl.DataFrame) -> None:
    """Make sure that in FP32 the unit of the loss changes nothing but the loss, to the bit."""
    small, usual = of(runs, SMALL_LOSS, "fp32", NO_SCALING), of(runs, MLP, "fp32")
    same_losses = np.array_equal(np.array(small["losses"].to_list()) * UNIT, usual["losses"].to_list())
    if not small["accuracy"].equals(usual["accuracy"]) or not same_losses:
        raise AssertionError("the MLP and its variant with a small loss went different ways in FP32")


def kinds() -> dict[tuple[Case, str, str], str]:
    """What is trained, and the name of its curve."""
    usual = {(case, strategy, DYNAMIC): TITLES[strategy] for case in CASES for strategy in STRATEGIES}
    return usual | {(SMALL_LOSS, s, scaling): f"{TITLES[s]}, {scaling}" for s, scaling in SMALL_RUNS}


def results(runs: pl.DataFrame, seeds: int) -> dict[str, Any]:
    """Put everything together that the page shows."""
    by_network: dict[str, dict[str, list[float]]] = {}
    for (case, *how), label in kinds().items():
        medians = np.nanmedian(of(runs, case, *how)["losses"].to_list(), axis=0)
        by_network.setdefault(case.title, {})[label] = [float(v) for v in medians]
    return {
        "made": made("numpy", "scikit-learn"),
        "train": TRAIN,
        "held_out": len(digits()[1]) - TRAIN,
        "batch": BATCH,
        "epochs": EPOCHS,
        "steps": EPOCHS * (TRAIN // BATCH),
        "seeds": seeds,
        "device": DEVICE,
        "titles": TITLES,
        "accuracy": {c.title: {s: spread(of(runs, c, s)["accuracy"]) for s in STRATEGIES} for c in CASES},
        "differences": [difference(runs, case, s) for case in CASES for s in STRATEGIES[1:]],
        "scaling": [scaled(runs, *how) for how in SMALL_RUNS],
        "losses": by_network,
        "cpu_minutes": os.times().children_user / 60,
    }


def main() -> None:
    """Train everything, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds; the committed page stays")
    parser.add_argument("--out", type=Path, default=Path("build/accuracy"), help="where --quick writes to")
    chosen = parser.parse_args()
    seeds, folder = (QUICK_SEEDS, chosen.out) if chosen.quick else (SEEDS, RESULTS)
    jobs = [(*kind, seed) for kind in kinds() for seed in range(seeds)]
    with ProcessPoolExecutor(WORKERS) as pool:
        runs = pl.DataFrame(list(pool.map(train, *zip(*jobs, strict=True), chunksize=5)))
    check_units(runs)
    data = results(runs, seeds)
    print(*publish("accuracy", data, folder))
    curves(data["losses"], folder / "accuracy_loss.svg", axis="training loss", steps="epoch")


if __name__ == "__main__":
    main()
