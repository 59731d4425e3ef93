"""Small networks that learn scikit-learn's digits in FP32 and in low precision, emulated on the CPU."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx import Options, Plan, Precision, oplists, target
from campo_onnx.emulation.dfp16 import Rounding, emulate_dfp16
from campo_onnx.emulation.numerics import emulate
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.lists.overrides import unmatched
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession

DATA = Path(__file__).parent / "data"
TRAIN, BATCH, EPOCHS = 1437, 64, 40
DEVICE = "h200"
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
_BY_STEP = {case.step: case for case in (*CASES, SMALL_LOSS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a network is trained: what plans it, what emulates it, and the loss scale."""

    title: str
    strategy: str = "optimal"
    low: Precision = Precision.FP16
    emulate: Callable[[onnx.ModelProto], onnx.ModelProto] = emulate
    scaling: str = DYNAMIC
    keep_fp32: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# As the paper has it: the first convolution and the fully connected layer in FP32. Where nothing else would
# be left (the MLP and the transformer are fully connected), all of it is low.
_DFP16 = How(
    title="DFP-16",
    emulate=emulate_dfp16,
    scaling=NO_SCALING,
    keep_fp32=MappingProxyType({"cnn_step": ("conv1/.*", "fc/.*")}),
)
STRATEGIES = {
    "fp32": How(title="FP32", strategy="fp32"),
    "tf-amp": How(title="TF_AMP", strategy="tf-amp"),
    "campo": How(title="Campo", strategy="campo"),
    "optimal": How(title="optimal"),
}
SMALL_RUNS = {
    "fp32 unscaled": replace(STRATEGIES["fp32"], scaling=NO_SCALING),
    "campo unscaled": replace(STRATEGIES["campo"], scaling=NO_SCALING),
    "campo": STRATEGIES["campo"],
}
"""Ways to train the case that needs loss scaling."""

FORMATS = {
    "bf16": How(title="BF16", low=Precision.BF16, scaling=NO_SCALING),
    "dfp16": _DFP16,
    "dfp16 stochastic": replace(
        _DFP16, title="DFP-16, stochastic", emulate=partial(emulate_dfp16, rounding=Rounding.STOCHASTIC)
    ),
}
HOWS = {**STRATEGIES, **SMALL_RUNS, **FORMATS}


def path_of(name: str) -> Path:
    """Where a graph lies."""
    return DATA / f"{name}.onnx"


@cache
def costless(step: str, name: str) -> tuple[onnx.ModelProto, Plan]:
    """Plan as if Casts cost nothing, and emulate: as much low precision as lists and safety rules allow."""
    how = HOWS[name]
    chosen = replace(options(how), min_gain=0.0, low=how.low, keep_fp32=how.keep_fp32.get(step, ()))
    imported = import_model(path_of(step))
    problem = problem_of(imported, chosen)
    free = replace(problem, costs=replace(problem.costs, cast=CastModel(r_us=0.0, c_i_us=0.0)))
    plan = decide(free, imported, chosen)
    if how.strategy != "fp32" and not plan.low_nodes:
        raise AssertionError(f"{name} lowers nothing of {step}: FP32 would be compared with itself")
    for sentence in unmatched(imported.view, operators={}, keep_fp32=chosen.keep_fp32):
        raise AssertionError(sentence)
    return how.emulate(rewrite(imported, plan)), plan


def options(how: How) -> Options:
    """Options of the planner."""
    return Options(target=target(DEVICE), lists=oplists("campo"), strategy=how.strategy)


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


def train(step: str, name: str, seed: int) -> dict[str, Any]:
    """Train once and measure accuracy on the images held out, with the FP32 weights in FP32."""
    began, case = time.process_time(), _BY_STEP[step]
    images, labels = digits()
    model, plan = costless(step, name)
    rng = np.random.default_rng(seed)
    training = TrainingSession(
        model,
        first_state(model, rng),
        settings={"lr": case.lr},
        provider="cpu",
        runtime="onnxruntime",
        threads=1,
        scaler=LossScaler.static(1.0) if HOWS[name].scaling == NO_SCALING else LossScaler(),
    )
    losses, skipped = [], 0
    for _ in range(EPOCHS):
        order = rng.permutation(TRAIN)
        batches = [order[i : i + BATCH] for i in range(0, TRAIN - BATCH + 1, BATCH)]
        results = [*training.train({"input.images": images[b], "target.labels": labels[b]} for b in batches)]
        loss = float(np.mean([r.loss for r in results]))
        losses.append(loss if np.isfinite(loss) else None)
        skipped += sum(r.skipped for r in results)
    return {
        "network": case.title,
        "how": name,
        "seed": seed,
        "losses": losses,
        "skipped": skipped,
        "accuracy": accuracy(case, training.state()),
        "low_nodes": len(plan.low_nodes),
        "cpu_s": time.process_time() - began,
    }


def accuracy(case: Case, state: Mapping[str, NDArray[Any]]) -> float:
    """Percent of the images held out that a network tells right."""
    model = onnx.load(path_of(case.evaluation))
    images, labels = digits()
    feeds = {i.name: state[i.name] for i in model.graph.input if i.name in state}
    (logits,) = run(model, feeds | {"input.images": images[TRAIN:]}, machine("cpu", 1)).values()
    return float((logits.argmax(1) == labels[TRAIN:]).mean() * 100)
