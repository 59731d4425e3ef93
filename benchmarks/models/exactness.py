"""How exact a training step is: its loss, every gradient and three updates, against the same in FP64.

FP32 is not exact either. An error counts in multiples of what the framework itself makes in FP32, that of
each gradient for itself; one below four roundings counts as four roundings. One draw of weights does not
tell: the bias of three channels may be lucky in either program, and an activation within rounding of zero
takes the other side of a ReLU in one of them. So errors are medians over several draws, in both.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.models.case import Case
from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.export.optimizers import Momentum
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load, machine
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

Arrays = dict[str, NDArray[Any]]

LIMIT = 3.0
DRAWS = 5
STEPS, RATE, MOMENTUM = 3, 0.01, 0.9
PLANNED_FOR = "v100"
_FOUR_ROUNDINGS = 4 * 2.0**-24
_SMALL = (
    1e-3  # a gradient below this share of the largest counts as that large: it may be zero but for rounding
)
_LOSS_SCALE = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained case: its first step, and the weights after the last."""

    loss: float
    gradients: Arrays
    weights: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How a framework's cases are exported and trained.

    Parameters
    ----------
    export
        Writes the step of a case.
    feeds
        Gives a value for each of its inputs, the loss scale aside.
    train
        Trains a case in the framework itself, in FP64 or FP32.
    others
        The same in FP32 by the framework's other kernels, which add in another order.
    for_cpu
        Has a case exported for the CPU provider alone.
    """

    export: Callable[[Case], onnx.ModelProto]
    feeds: Callable[[Case, onnx.ModelProto], Arrays]
    train: Callable[[Case, bool], Trained]
    others: Mapping[str, Callable[[Case], Trained]] = field(default_factory=dict)
    for_cpu: Callable[[Case], Case] | None = None


class _Draw(NamedTuple):
    """A case with weights and a batch of its own, and what becomes of it."""

    case: Case
    feeds: Arrays
    exact: Trained
    single: Trained

    def errors(self, trained: Trained) -> dict[str, float]:
        return _errors(trained, self.exact, self.feeds)


def measured(draw: Callable[[int], Case], framework: Framework) -> dict[str, Any]:
    """Export a case once, and hold draws of its weights and batch against its framework."""
    began = time.process_time()
    case = draw(0)
    model = framework.export(case)
    export_s = time.process_time() - began
    here = machine("cpu", 1)
    ours = _Ours(model, framework.feeds(case, model), here)
    draws = []
    for number in range(DRAWS):
        case = draw(number)
        trained = (framework.train(case, is_exact) for is_exact in (True, False))
        draws.append(_Draw(case, framework.feeds(case, model), *trained))
    own = _by_name(each.errors(each.single) for each in draws)
    errors = _by_name(each.errors(ours.trained(each.feeds)) for each in draws)
    feeds = draws[0].feeds
    row = {
        "nodes": len(model.graph.node),
        "export_s": export_s,
        **_held_against(errors, own),
        **_planned(model, feeds, ours.once(feeds), here),
    }
    if max(_ratios(errors, own).values()) > LIMIT:
        row["above"] = _explained(draws, own, framework, here)
    return row


def compared(
    draw: Callable[[int], Case], framework: Framework, train: Callable[[Case], Trained]
) -> dict[str, Any]:
    """Hold another way of training in FP32 against the framework's; where it is above the limit, others too.

    Parameters
    ----------
    draw
        Gives a case with weights and a batch of its own.
    framework
        What trains in FP64 and in FP32.
    train
        The other way. A gradient that it gives and the framework does not must be zero.
    """
    row = _compared(draw, framework, train)
    if _highest(row) > LIMIT:
        others = {name: _compared(draw, framework, other) for name, other in framework.others.items()}
        row["above"] = {name: _highest(other) for name, other in others.items()}
    return row


def _highest(row: Mapping[str, Any]) -> float:
    return max(row["loss_ratio"], row["gradient_ratio"], row["steps_ratio"])


def _compared(
    draw: Callable[[int], Case], framework: Framework, train: Callable[[Case], Trained]
) -> dict[str, Any]:
    errors, own = [], []
    for number in range(DRAWS):
        case = draw(number)
        start = {f"param.{n}": p.detach().numpy().copy() for n, p in case.module.named_parameters()}
        exact, single = (framework.train(case, is_exact) for is_exact in (True, False))
        trained = train(case)
        gradients = {n: g for n, g in trained.gradients.items() if n in exact.gradients or g.any()}
        own.append(_errors(single, exact, start))
        errors.append(_errors(replace(trained, gradients=gradients), exact, start))
    return _held_against(_by_name(errors), _by_name(own))


def _held_against(errors: Mapping[str, NDArray[Any]], own: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    ratios = _ratios(errors, own)
    gradients = [name for name in errors if name not in (_LOSS, _WEIGHTS)]
    worst = max(gradients, key=lambda name: ratios[name])
    return {
        "gradients": len(gradients),
        "loss_ratio": ratios[_LOSS],
        "gradient_error": float(np.median(errors[worst])),
        "gradient_ratio": ratios[worst],
        "worst": worst,
        "single_draws": [max(_ratio(errors[key][n], own[key][n]) for key in gradients) for n in range(DRAWS)],
        "steps_error": float(np.median(errors[_WEIGHTS])),
        "steps_ratio": ratios[_WEIGHTS],
    }


def _explained(
    draws: Sequence[_Draw], own: Mapping[str, NDArray[Any]], framework: Framework, here: Machine
) -> dict[str, float]:
    """Find what else the worst ratio may be: the step for this provider, the framework in other orders."""
    by_way = {}
    if framework.for_cpu is not None:
        model = framework.export(framework.for_cpu(draws[0].case))
        ours = _Ours(model, framework.feeds(draws[0].case, model), here)
        by_way["exported for the CPU provider"] = [ours.trained(each.feeds) for each in draws]
    for name, train in framework.others.items():
        by_way[name] = [train(each.case) for each in draws]
    worst = {}
    for name, trained in by_way.items():
        errors = _by_name(each.errors(outcome) for each, outcome in zip(draws, trained, strict=True))
        worst[name] = max(_ratios(errors, own).values())
    return worst


def _by_name(errors: Iterable[Mapping[str, float]]) -> dict[str, NDArray[Any]]:
    """Put the errors of all draws together, by gradient."""
    each = list(errors)
    return {name: np.array([draw[name] for draw in each]) for name in each[0]}


def _ratios(errors: Mapping[str, NDArray[Any]], own: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    return {name: float(_ratio(np.median(draws), np.median(own[name]))) for name, draws in errors.items()}


def _ratio(ours: float, own: float) -> float:
    return ours / max(own, _FOUR_ROUNDINGS)


_LOSS, _WEIGHTS = "(loss)", "(weights)"


def _errors(trained: Trained, exact: Trained, feeds: Arrays) -> dict[str, float]:
    """Relative errors of every gradient, the loss, and all weights together after the last step."""
    assert trained.gradients.keys() == exact.gradients.keys(), "the gradients are those of other parameters"
    sizes = {name: _length(value) for name, value in exact.gradients.items()}
    least = _SMALL * max(sizes.values())
    errors = {
        name: _length(trained.gradients[name].astype(np.float64) - exact.gradients[name]) / max(size, least)
        for name, size in sizes.items()
    }
    errors[_LOSS] = abs(trained.loss - exact.loss) / abs(exact.loss)
    # Relative to how far training has moved them.
    far = math.hypot(*(_length(value - feeds[f"param.{name}"]) for name, value in exact.weights.items()))
    off = math.hypot(*(_length(trained.weights[name] - value) for name, value in exact.weights.items()))
    return errors | {_WEIGHTS: off / far}


class _Ours:
    """The exported step, loaded once: as it is, and in a session that trains."""

    def __init__(self, model: onnx.ModelProto, feeds: Arrays, here: Machine) -> None:
        self._once = load(model, here, settings=LoadSettings(must_stay=False, holds_memory=False))
        self._session = TrainingSession(
            model,
            _state(feeds),
            update=WeightUpdate(optimizer=Momentum(momentum=MOMENTUM)),
            settings={"lr": RATE},
            provider="cpu",
            runtime="onnxruntime",
            threads=1,
        )
        self._fresh = self._session.state()

    def once(self, feeds: Arrays) -> Arrays:
        """Give all outputs of one step."""
        return self._once.run(feeds | {"loss_scale": np.array(1, np.float32)})

    def trained(self, feeds: Arrays) -> Trained:
        """Train from these weights, with the momentum of a fresh start."""
        first = self.once(feeds)
        state = _state(feeds)
        self._session.load_state(self._fresh | state)
        for _ in range(STEPS):
            result = self._session.step({name: value for name, value in feeds.items() if name not in state})
            assert result.updated, "a gradient overflowed in FP32"
        return Trained(
            loss=float(first["loss"]),
            gradients=_without("grad.", first),
            weights=_without("param.", self._session.state()),
        )


def _state(feeds: Arrays) -> Arrays:
    return {name: value for name, value in feeds.items() if name.startswith(("param.", "buf."))}


def _without(prefix: str, values: Arrays) -> Arrays:
    return {n.removeprefix(prefix): value for n, value in values.items() if n.startswith(prefix)}


def _length(value: NDArray[Any]) -> float:
    return float(np.linalg.norm(value.astype(np.float64)))


def _planned(model: onnx.ModelProto, feeds: Arrays, out: Arrays, here: Machine) -> dict[str, Any]:
    """Plan the step, and see how far one as low as torch's autocast has it drifts from FP32."""
    options = Options(target=target(PLANNED_FOR), lists=oplists("campo"))
    plan = optimize_model(model, options).plan
    amp = optimize_model(
        model, Options(target=target(PLANNED_FOR), lists=oplists("pytorch"), strategy="torch-amp")
    )
    mixed = run(emulate(amp.model), feeds | {"loss_scale": np.array(_LOSS_SCALE, np.float32)}, here)
    names = [name for name in out if name.startswith("grad.")]
    error = math.hypot(*(_length(mixed[name] - out[name]) for name in names))
    return {
        "low": len(plan.low_nodes),
        "casts": len(plan.casts),
        "predicted": plan.fp32_us / plan.predicted_us,
        "amp_low": len(amp.plan.low_nodes),
        "drift": error / math.hypot(*(_length(out[name]) for name in names)),
        "drift_loss": abs(float(mixed["loss"]) - float(out["loss"])) / abs(float(out["loss"])),
    }
