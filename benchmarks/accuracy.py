"""Whether training in mixed precision is as accurate as in FP32: the Campo paper's Table 3 in small.

A multilayer perceptron, a convolutional network and a transformer learn scikit-learn's digits (1,797
images of 8 x 8) with SGD and momentum, from the same starting points and batches in FP32 and in mixed
precision. Without a GPU the mixed graphs are emulated: FP32 arithmetic, every FP16 tensor rounded to FP16.

Run ``python benchmarks/accuracy.py`` (needs scikit-learn; a few minutes on two cores). It writes
``results/accuracy.md`` and ``results/accuracy_loss.svg``; with ``--quick`` it takes two seeds and only
prints. The graphs in ``data/`` are described in ``data/README.md``.
"""

import argparse
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from loss_curves import Panel, write_svg
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from campo_onnx import Options, device, oplists
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.pipeline import decide, optimize, problem_of
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.numerics import emulate
from campo_onnx.training.session import TrainingSession

HERE = Path(__file__).parent
TABLE, CURVES = HERE / "results" / "accuracy.md", HERE / "results" / "accuracy_loss.svg"
TRAIN, BATCH, EPOCHS, SEEDS, WORKERS = 1437, 64, 40, 40, 2
QUICK_SEEDS = 2
DEVICE = "h200"
STRATEGIES = ("fp32", "tf-amp", "campo", "optimal")
TITLES = {"fp32": "FP32", "tf-amp": "TF_AMP", "campo": "Campo", "optimal": "optimal"}
NO_SCALING, DYNAMIC = "no loss scaling", "dynamic loss scaling"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network: its files in ``data/`` and its learning rate."""

    title: str
    step: str
    evaluation: str
    lr: float


MLP = Case(title="MLP", step="mlp_step", evaluation="mlp_eval", lr=0.05)
CASES = (
    MLP,
    Case(title="CNN with BatchNorm", step="cnn_step", evaluation="cnn_eval", lr=0.05),
    Case(title="Transformer", step="transformer_step", evaluation="transformer_eval", lr=0.05),
)
UNIT = 2**18
# The same network; its loss is 2^-18 times the cross entropy, its learning rate 2^18 times the MLP's. Powers
# of two are exact, so in FP32 the weights go the MLP's way to the bit.
SMALL_LOSS = replace(MLP, title="MLP, small loss", step="mlp_small_loss_step", lr=MLP.lr * UNIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run to do."""

    case: Case
    strategy: str
    scaling: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of it: accuracy in percent, skipped steps, mean training loss of each epoch."""

    accuracy: float
    skipped: int
    losses: tuple[float, ...]


def options(strategy: str) -> Options:
    return Options(device=device(DEVICE), lists=oplists("campo"), strategy=strategy)


@cache
def costless(case: Case, strategy: str) -> tuple[onnx.ModelProto, Plan]:
    """Plan as if Casts cost nothing, and emulate: as much FP16 as lists and safety rules allow."""
    chosen = replace(options(strategy), min_gain=0.0)
    imported = import_model(HERE / "data" / f"{case.step}.onnx")
    problem = problem_of(imported, chosen)
    costs = replace(problem.costs, cast=CastModel(r_us=0.0, c_i_us=0.0))
    plan = decide(replace(problem, costs=costs), imported, chosen)
    if strategy != "fp32" and not plan.low_nodes:
        raise AssertionError(f"{strategy} lowers nothing of {case.title}: FP32 would be compared with itself")
    return emulate(rewrite(imported, plan)), plan


@cache
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images in [0, 1] and labels, in one random order for all runs."""
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


def train(job: Run) -> Outcome:
    """Train once and measure accuracy on the images held out, with the FP32 weights in FP32."""
    images, labels = digits()
    model, _ = costless(job.case, job.strategy)
    rng = np.random.default_rng(job.seed)
    training = TrainingSession(
        model,
        first_state(model, rng),
        settings={"lr": job.case.lr},
        provider="cpu",
        threads=1,
        scaler=LossScaler.static(1.0) if job.scaling == NO_SCALING else LossScaler(),
    )
    losses, skipped = [], 0
    for _ in range(EPOCHS):
        order = rng.permutation(TRAIN)
        steps = [order[i : i + BATCH] for i in range(0, TRAIN - BATCH + 1, BATCH)]
        results = [*training.train({"input.images": images[b], "target.labels": labels[b]} for b in steps)]
        losses.append(float(np.mean([r.loss for r in results])))
        skipped += sum(r.skipped for r in results)
    return Outcome(
        accuracy=accuracy(job.case, training.state()),
        skipped=skipped,
        losses=tuple(losses),
    )


def accuracy(case: Case, state: Mapping[str, NDArray[Any]]) -> float:
    model = onnx.load(HERE / "data" / f"{case.evaluation}.onnx")
    images, labels = digits()
    feeds = {i.name: state[i.name] for i in model.graph.input if i.name in state}
    logits = run(model, feeds | {"input.images": images[TRAIN:]}, machine("cpu", 1))["logits"]
    return float((logits.argmax(1) == labels[TRAIN:]).mean() * 100)


def spread(values: Iterable[float]) -> str:
    array = np.array(list(values))
    return f"{array.mean():.2f} ± {array.std(ddof=1):.2f}"


def paired(mixed: Iterable[float], fp32: Iterable[float]) -> str:
    """Mean difference seed by seed, with the half-width of its 95 % interval (normal approximation)."""
    d = np.array(list(mixed)) - np.array(list(fp32))
    return f"{d.mean():+.2f} ± {1.96 * d.std(ddof=1) / len(d) ** 0.5:.2f}"


Outcomes = Mapping[tuple[str, str, str], list[Outcome]]


def twins(outcomes: Outcomes) -> str:
    """Say so where TF_AMP and Campo trained alike, lest equal columns look like a mistake."""
    same = [
        c.title for c in CASES if outcomes[c.title, "tf-amp", DYNAMIC] == outcomes[c.title, "campo", DYNAMIC]
    ]
    if not same:
        return ""
    return f"""
TF_AMP and Campo gave the same numbers to the bit for {", ".join(same)}:
with free Casts they differ at most in nodes that only move values (Reshape, Unsqueeze)."""


def accuracy_table(outcomes: Outcomes) -> list[str]:
    rows = ["| network | " + " | ".join(TITLES.values()) + " |", "|---" * 5 + "|"]
    for case in CASES:
        found = [outcomes[case.title, s, DYNAMIC] for s in STRATEGIES]
        rows.append(f"| {case.title} | " + " | ".join(spread(o.accuracy for o in f) for f in found) + " |")
    return rows


def difference_table(outcomes: Outcomes) -> list[str]:
    head = "| network | strategy | FP16 nodes, free Casts | FP16 nodes, real Casts | accuracy minus FP32's "
    head += "| within FP32's spread | steps skipped |"
    rows = [head, "|---" * 7 + "|"]
    for case in CASES:
        fp32 = [o.accuracy for o in outcomes[case.title, "fp32", DYNAMIC]]
        for strategy in STRATEGIES[1:]:
            found = outcomes[case.title, strategy, DYNAMIC]
            mixed = [o.accuracy for o in found]
            is_within = abs(np.mean(mixed) - np.mean(fp32)) <= np.std(fp32, ddof=1)
            plan = costless(case, strategy)[1]
            real = optimize(HERE / "data" / f"{case.step}.onnx", options(strategy)).plan
            rows.append(
                f"| {case.title} | {TITLES[strategy]} | {len(plan.low_nodes)} of {len(plan.decisions)} "
                f"| {len(real.low_nodes)} | {paired(mixed, fp32)} | {'yes' if is_within else 'NO'} "
                f"| {np.mean([o.skipped for o in found]):.1f} of {EPOCHS * (TRAIN // BATCH)} |"
            )
    return rows


def scaling_table(outcomes: Outcomes) -> list[str]:
    rows = ["| precision | loss scale | accuracy | loss: last / first epoch, median | ended in NaN |"]
    rows.append("|---" * 5 + "|")
    for strategy, scaling in (("fp32", NO_SCALING), ("campo", NO_SCALING), ("campo", DYNAMIC)):
        found = outcomes[SMALL_LOSS.title, strategy, scaling]
        ratios = np.array([o.losses[-1] / o.losses[0] for o in found])
        lost = f"{np.isnan(ratios).sum()} of {len(ratios)}"
        rows.append(
            f"| {TITLES[strategy]} | {scaling} | {spread(o.accuracy for o in found)} "
            f"| {np.nanmedian(ratios):.3f} | {lost} |"
        )
    return rows


TEXT = """\
# Accuracy in mixed precision

Modelled on Table 3 of the Campo paper: final accuracy with FP32, TF_AMP and Campo. Written by
`benchmarks/accuracy.py`.

- CPU emulation (FP32 arithmetic, every FP16 tensor rounded to FP16). On CUDA: not measured.
- Data: scikit-learn's digits, {train} images to train, {test} held out; batch {batch}, {epochs} epochs.
- {seeds} seeds. A seed gives the starting weights and the order of batches, the same in every column.
- SGD, momentum 0.9, FP32 master weights, dynamic loss scaling from 2^24. Accuracy is that of the FP32
  weights in FP32 after the last epoch; none was picked.
- Layers as small as these never pay for a Cast on a GPU: planned for {device} with its real costs, campo and
  optimal leave them in FP32 ("real Casts" below). To test numerics at all, the graphs are planned as if
  Casts cost nothing, which is more FP16 than the strategies would choose. Lists: campo. TF_AMP asks no costs.

## Accuracy on held-out images, % (mean ± standard deviation over seeds)

{accuracy}

## Against FP32, seed by seed (mean ± 95 % interval of the mean, in points)

{difference}

"Within FP32's spread": the mean differs from FP32's by less than FP32's standard deviation over seeds.
Steps are skipped at the beginning, until the loss scale has come down from 2^24.{twins}

Training loss, mean of each epoch, median over seeds:

![Training loss](accuracy_loss.svg)

## A case that needs loss scaling

The MLP with its loss measured in units of 2^18: the loss is 2^-18 times the cross entropy, the learning
rate 2^18 times larger. In FP32 this changes nothing, to the bit (checked). In FP16 gradients fall below
6e-8, the smallest number above zero, and without loss scaling the network stays at chance (10 %).

{scaling}

campo-onnx {campo}, ONNX Runtime {ort} on its CPU provider, onnx {onnx}, NumPy {numpy}; {minutes:.0f} CPU
minutes.
"""


def check_units(outcomes: Outcomes) -> None:
    """Make sure that in FP32 the unit of the loss changes nothing but the loss, to the bit."""
    small, usual = outcomes[SMALL_LOSS.title, "fp32", NO_SCALING], outcomes[MLP.title, "fp32", DYNAMIC]
    for a, b in zip(small, usual, strict=True):
        if a.accuracy != b.accuracy or not np.array_equal(np.array(a.losses) * UNIT, b.losses):
            raise AssertionError("the MLP and its variant with a small loss went different ways in FP32")


def jobs(seeds: int) -> list[Run]:
    kinds = [(case, strategy, DYNAMIC) for case in CASES for strategy in STRATEGIES]
    kinds += [(SMALL_LOSS, s, NO_SCALING) for s in ("fp32", "campo")] + [(SMALL_LOSS, "campo", DYNAMIC)]
    return [Run(case=c, strategy=s, scaling=k, seed=n) for c, s, k in kinds for n in range(seeds)]


def panels(outcomes: Outcomes) -> list[Panel]:
    def median(key: tuple[str, str, str]) -> list[float]:
        return list(np.nanmedian([o.losses for o in outcomes[key]], axis=0))

    found = [
        Panel(title=case.title, curves={TITLES[s]: median((case.title, s, DYNAMIC)) for s in STRATEGIES})
        for case in CASES
    ]
    small = {
        f"{TITLES[s]}, {k}": median((SMALL_LOSS.title, s, k))
        for s, k in (("fp32", NO_SCALING), ("campo", NO_SCALING), ("campo", DYNAMIC))
    }
    return [*found, Panel(title=SMALL_LOSS.title, curves=small)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two seeds, nothing is written")
    is_quick = parser.parse_args().quick
    seeds = QUICK_SEEDS if is_quick else SEEDS
    todo = jobs(seeds)
    with ProcessPoolExecutor(WORKERS) as pool:
        done = list(pool.map(train, todo, chunksize=5))
    outcomes: dict[tuple[str, str, str], list[Outcome]] = {}
    for job, outcome in zip(todo, done, strict=True):
        outcomes.setdefault((job.case.title, job.strategy, job.scaling), []).append(outcome)
    check_units(outcomes)
    text = TEXT.format(
        train=TRAIN,
        test=len(digits()[1]) - TRAIN,
        batch=BATCH,
        epochs=EPOCHS,
        seeds=seeds,
        device=DEVICE,
        accuracy="\n".join(accuracy_table(outcomes)),
        difference="\n".join(difference_table(outcomes)),
        twins=twins(outcomes),
        scaling="\n".join(scaling_table(outcomes)),
        campo=version("campo-onnx"),
        ort=machine("cpu").ort,
        onnx=version("onnx"),
        numpy=version("numpy"),
        minutes=os.times().children_user / 60,
    )
    if not is_quick:
        TABLE.write_text(text, encoding="utf-8")
        write_svg(panels(outcomes), CURVES)
    print(text)


if __name__ == "__main__":
    main()
