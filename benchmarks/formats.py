"""Low formats beside each other: the accuracy experiment in FP16, BF16 and dynamic fixed point (DFP-16).

    python -m benchmarks.formats [--seeds 10]

The networks, data, batches and starting weights of benchmarks/accuracy.py; in every format as many nodes are
low as lists and safety rules allow. FP16 has dynamic loss scaling, the others none. Needs scikit-learn; about
two minutes of one core a seed. Run it again and it goes on. Writes results/formats.json and .md.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from benchmarks.accuracy import (
    BATCH,
    CASES,
    EPOCHS,
    HERE,
    TRAIN,
    Case,
    accuracy,
    digits,
    first_state,
    options,
    paired,
    spread,
)
from benchmarks.pages import made, publish
from benchmarks.steps import Call, Records, Step, add_arguments, call_of, drive
from campo_onnx import Precision
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.overrides import unmatched
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.pipeline import decide, problem_of
from campo_onnx.training.dfp16 import Rounding, emulate_dfp16
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.numerics import emulate
from campo_onnx.training.session import TrainingSession

Emulate = Callable[[onnx.ModelProto], onnx.ModelProto]
STRATEGY = "optimal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A low format: how it is planned, emulated, and whether it needs loss scaling."""

    title: str
    low: Precision
    emulate: Emulate
    is_scaled: bool = False
    keep_fp32: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# As the paper has it: the first convolution and the fully connected layer in FP32. Where nothing else would
# be left (the MLP and the transformer are fully connected), all of it is low.
_AS_IN_THE_PAPER = MappingProxyType({"CNN with BatchNorm": ("conv1/.*", "fc/.*")})

FORMATS = {
    "fp32": Format(title="FP32", low=Precision.FP16, emulate=emulate),
    "fp16": Format(title="FP16", low=Precision.FP16, emulate=emulate, is_scaled=True),
    "bf16": Format(title="BF16", low=Precision.BF16, emulate=emulate),
    "dfp16": Format(title="DFP-16", low=Precision.FP16, emulate=emulate_dfp16, keep_fp32=_AS_IN_THE_PAPER),
    "dfp16_stochastic": Format(
        title="DFP-16, stochastic",
        low=Precision.FP16,
        emulate=partial(emulate_dfp16, rounding=Rounding.STOCHASTIC),
        keep_fp32=_AS_IN_THE_PAPER,
    ),
}


@cache
def step_in(case: Case, name: str) -> tuple[onnx.ModelProto, int]:
    """Plan as if Casts cost nothing, and emulate; with the number of low nodes."""
    form = FORMATS[name]
    chosen = replace(
        options("fp32" if name == "fp32" else STRATEGY),
        min_gain=0.0,
        low=form.low,
        keep_fp32=form.keep_fp32.get(case.title, ()),
    )
    imported = import_model(HERE / "data" / f"{case.step}.onnx")
    problem = problem_of(imported, chosen)
    free = replace(problem, costs=replace(problem.costs, cast=CastModel(r_us=0.0, c_i_us=0.0)))
    plan = decide(free, imported, chosen)
    if name != "fp32" and not plan.low_nodes:
        raise AssertionError(f"{name} lowers nothing of {case.title}: FP32 would be compared with itself")
    for sentence in unmatched(imported.view, operators={}, keep_fp32=chosen.keep_fp32):
        raise AssertionError(sentence)
    return form.emulate(rewrite(imported, plan)), len(plan.low_nodes)


def train(case: Case, name: str, seed: int, call: Call) -> dict[str, Any]:
    """Train once, and measure accuracy on the images held out, with the FP32 weights in FP32."""
    images, labels = digits()
    model, low_nodes = step_in(case, name)
    rng = np.random.default_rng(seed)
    training = TrainingSession(
        model,
        first_state(model, rng),
        settings={"lr": case.lr},
        provider="cpu",
        threads=1,
        scaler=LossScaler() if FORMATS[name].is_scaled else LossScaler.static(1.0),
    )
    losses = []
    for epoch in range(EPOCHS):
        order = rng.permutation(TRAIN)
        batches = [order[i : i + BATCH] for i in range(0, TRAIN - BATCH + 1, BATCH)]
        results = [*training.train({"input.images": images[b], "target.labels": labels[b]} for b in batches)]
        losses.append(float(np.mean([result.loss for result in results])))
        call.deadline.tick(epoch + 1, EPOCHS)
    return {"accuracy": accuracy(case, training.state()), "loss": losses[-1], "low_nodes": low_nodes}


def steps(seeds: int) -> Iterator[Step]:
    """Every training, seed by seed, so that all formats have as many when it is stopped."""
    for seed in range(seeds):
        for case in CASES:
            for name in FORMATS:
                yield Step(
                    name=f"{case.step}_{name}_{seed}", work=partial(train, case, name, seed), seconds=30
                )


def results(records: Records) -> dict[str, Any]:
    """Put together what the page shows, of the seeds that every format has."""
    found = {name: facts["result"] for name, facts in records.all().items() if "result" in facts}
    seeds, rows = [], []
    while all(step.name in found for step in list(steps(len(seeds) + 1))):
        seeds.append(len(seeds))
    for case in CASES if len(seeds) > 1 else ():  # with one seed there is no standard deviation
        by = {n: [found[f"{case.step}_{n}_{seed}"] for seed in seeds] for n in FORMATS}
        fp32 = [run["accuracy"] for run in by["fp32"]]
        rows += [
            {
                "network": case.title,
                "format": FORMATS[name].title,
                "low_nodes": runs[0]["low_nodes"],
                "accuracy": spread(run["accuracy"] for run in runs),
                "difference": None if name == "fp32" else paired((r["accuracy"] for r in runs), fp32),
                "loss": float(np.median([run["loss"] for run in runs])),
            }
            for name, runs in by.items()
        ]
    return {"made": made("numpy", "scikit-learn"), "seeds": len(seeds), "epochs": EPOCHS, "rows": rows}


def main() -> int:
    """Train what is not done yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="where the page goes; among the results by default")
    add_arguments(parser, work="build/formats")
    chosen = parser.parse_args()
    folder = {"folder": chosen.out} if chosen.out else {}
    return drive(
        steps(chosen.seeds),
        call_of(chosen),
        chosen,
        lambda records: publish("formats", results(records), **folder),
    )


if __name__ == "__main__":
    raise SystemExit(main())
