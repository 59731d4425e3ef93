"""How exact a training step is: its loss, every gradient and three updates, against the same in FP64.

FP32 is not exact either. An error counts in multiples of what the framework itself makes in FP32, that of
each gradient for itself; one below four roundings counts as four roundings. One draw of weights does not
tell: the bias of three channels may be lucky in either program, and an activation within rounding of zero
takes the other side of a ReLU in one of them. So errors are medians over several draws, in both.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.models.case import Case
from campo_onnx import Options, device, oplists, optimize_model
from campo_onnx.export.optimizers import Momentum
from campo_onnx.runtime.providers import Machine, machine
from campo_onnx.runtime.run import run
from campo_onnx.runtime.sessions import open_session
from campo_onnx.training.numerics import emulate
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
    """What becomes of a case: the first step, and the weights after the last."""

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
    """

    export: Callable[[Case], onnx.ModelProto]
    feeds: Callable[[Case, onnx.ModelProto], Arrays]
    train: Callable[[Case, bool], Trained]


def measured(draw: Callable[[int], Case], framework: Framework) -> dict[str, Any]:
    """Export a case once, and hold draws of its weights and batch against its framework."""
    began = time.process_time()
    case = draw(0)
    model = framework.export(case)
    export_s = time.process_time() - began
    here = machine("cpu", 1)
    ours = _Ours(model, framework.feeds(case, model), here)
    errors: list[tuple[Arrays, Arrays]] = []
    for number in range(DRAWS):
        case = draw(number)
        feeds = framework.feeds(case, model)
        exact, single = framework.train(case, True), framework.train(case, False)
        errors.append(tuple(_errors(found, exact, feeds) for found in (ours.trained(feeds), single)))
    found, own = (
        {key: np.array([each[side][key] for each in errors]) for key in errors[0][side]} for side in (0, 1)
    )
    ratios = {key: float(_ratio(np.median(found[key]), np.median(own[key]))) for key in found}
    gradients = [key for key in ratios if key not in (_LOSS, _WEIGHTS)]
    worst = max(gradients, key=lambda key: ratios[key])
    single_draws = [max(_ratio(found[key][n], own[key][n]) for key in gradients) for n in range(DRAWS)]
    feeds = framework.feeds(draw(0), model)
    return {
        "nodes": len(model.graph.node),
        "gradients": len(gradients),
        "export_s": export_s,
        "loss_ratio": ratios[_LOSS],
        "gradient_error": float(np.median(found[worst])),
        "gradient_ratio": ratios[worst],
        "worst": worst,
        "single_draws": single_draws,
        "steps_error": float(np.median(found[_WEIGHTS])),
        "steps_ratio": ratios[_WEIGHTS],
        **_planned(model, feeds, ours.once(feeds), here),
    }


def _ratio(ours: float, own: float) -> float:
    return ours / max(own, _FOUR_ROUNDINGS)


_LOSS, _WEIGHTS = "(loss)", "(weights)"


def _errors(found: Trained, exact: Trained, feeds: Arrays) -> dict[str, float]:
    """Relative errors of every gradient, the loss, and all weights together after the last step."""
    assert found.gradients.keys() == exact.gradients.keys(), "the gradients are those of other parameters"
    sizes = {name: _length(value) for name, value in exact.gradients.items()}
    least = _SMALL * max(sizes.values())
    errors = {
        name: _length(found.gradients[name].astype(np.float64) - exact.gradients[name]) / max(size, least)
        for name, size in sizes.items()
    }
    errors[_LOSS] = abs(found.loss - exact.loss) / abs(exact.loss)
    # Relative to how far training has moved them.
    far = math.hypot(*(_length(value - feeds[f"param.{name}"]) for name, value in exact.weights.items()))
    off = math.hypot(*(_length(found.weights[name] - value) for name, value in exact.weights.items()))
    return errors | {_WEIGHTS: off / far}


class _Ours:
    """The exported step, loaded once: as it is, and in a session that trains."""

    def __init__(self, model: onnx.ModelProto, feeds: Arrays, here: Machine) -> None:
        self._once = open_session(model, here, strict=False, holds_memory=False)
        self._session = TrainingSession(
            model,
            _state(feeds),
            update=WeightUpdate(optimizer=Momentum(momentum=MOMENTUM)),
            settings={"lr": RATE},
            provider="cpu",
            threads=1,
        )
        self._fresh = self._session.state()

    def once(self, feeds: Arrays) -> Arrays:
        """Give all outputs of one step."""
        names = [output.name for output in self._once.get_outputs()]
        values = self._once.run(names, feeds | {"loss_scale": np.array(1, np.float32)})
        return dict(zip(names, values, strict=True))

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
    options = Options(device=device(PLANNED_FOR), lists=oplists("campo"))
    plan = optimize_model(model, options).plan
    amp = optimize_model(
        model, Options(device=device(PLANNED_FOR), lists=oplists("pytorch"), strategy="torch-amp")
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


def _in_torch(case: Case, is_exact: bool) -> Trained:
    import torch

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if is_float and is_exact else value

    module = copy.deepcopy(case.module)
    module = module.double() if is_exact else module
    inputs, targets = ({n: cast(v) for n, v in each.items()} for each in (case.inputs, case.targets))
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=MOMENTUM)
    first: tuple[float, Arrays] | None = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = case.loss(module(**inputs), **targets)
        loss.backward()
        if first is None:
            found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            first = float(loss), {n: gradient.detach().numpy().copy() for n, gradient in found.items()}
        optimizer.step()
    assert first is not None
    weights = {n: p.detach().numpy() for n, p in module.named_parameters() if n in first[1]}
    return Trained(loss=first[0], gradients=first[1], weights=weights)


def _from_torch(case: Case) -> onnx.ModelProto:
    from campo_onnx.export.torch import export_training_step

    return export_training_step(case.module, case.loss, case.inputs, case.targets, **case.options)


def _feeds_of_torch(case: Case, model: onnx.ModelProto) -> Arrays:
    from campo_onnx.export import step_naming
    from campo_onnx.export.torch.arguments import arguments

    forward, loss = case.module.forward, case.loss
    batch = arguments(case.inputs, forward, skip=0, kind="input", name_of=step_naming.batch_input).tensors
    batch |= arguments(case.targets, loss, skip=1, kind="target", name_of=step_naming.target).tensors
    state = {step_naming.parameter(n): p for n, p in case.module.named_parameters()}
    state |= {step_naming.buffer(n): b for n, b in case.module.named_buffers()}
    read = {value.name for value in model.graph.input}
    return {n: t.detach().numpy().copy() for n, t in (state | batch).items() if n in read}


TORCH = Framework(export=_from_torch, feeds=_feeds_of_torch, train=_in_torch)
