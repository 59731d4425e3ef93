"""How exact a training step is: its loss, every gradient and three updates, against the same in FP64.

FP32 is not exact either. An error counts in multiples of what the framework itself makes in FP32, that of
each gradient for itself; one below four roundings counts as four roundings.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping
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
from campo_onnx.training.numerics import emulate
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

Arrays = dict[str, NDArray[Any]]

LIMIT = 3.0
STEPS, RATE, MOMENTUM = 3, 0.01, 0.9
PLANNED_FOR = "v100"
_FOUR_ROUNDINGS = 4 * 2.0**-24
_SMALL = (
    1e-3  # a gradient below this share of the largest counts as that large: it may be zero but for rounding
)
_LOSS_SCALE = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a framework makes of a case in one precision: the first step, and the weights after the last."""

    loss: float
    gradients: Arrays
    weights: Arrays


def measured(
    case: Case,
    export: Callable[[Case], tuple[onnx.ModelProto, Arrays]],
    train: Callable[[Case, bool], Trained],
) -> dict[str, Any]:
    """Export a case, and hold it against its framework.

    Parameters
    ----------
    case
        What is trained.
    export
        Gives the step and a value for each of its inputs, the loss scale aside.
    train
        Trains it in its framework, in FP64 or FP32.
    """
    began = time.process_time()
    model, feeds = export(case)
    export_s = time.process_time() - began
    exact, single = train(case, True), train(case, False)
    here = machine("cpu", 1)
    out = run(model, feeds | {"loss_scale": np.array(1, np.float32)}, here)
    gradients = {n.removeprefix("grad."): v for n, v in out.items() if n.startswith("grad.")}
    assert gradients.keys() == exact.gradients.keys(), "the gradients are those of other parameters"
    errors = {
        "ours": _errors(gradients, exact.gradients),
        "framework": _errors(single.gradients, exact.gradients),
    }
    ratios = {n: e / max(errors["framework"][n], _FOUR_ROUNDINGS) for n, e in errors["ours"].items()}
    worst = max(ratios, key=lambda name: ratios[name])
    loss = abs(float(out["loss"]) - exact.loss) / abs(exact.loss)
    loss_ratio = loss / max(abs(single.loss - exact.loss) / abs(exact.loss), _FOUR_ROUNDINGS)
    trained = _trained(model, feeds)
    steps = _moved(trained, exact.weights, feeds), _moved(single.weights, exact.weights, feeds)
    return {
        "nodes": len(model.graph.node),
        "gradients": len(gradients),
        "export_s": export_s,
        "loss_ratio": loss_ratio,
        "gradient_error": errors["ours"][worst],
        "gradient_ratio": ratios[worst],
        "worst": worst,
        "steps_error": steps[0],
        "steps_ratio": steps[0] / max(steps[1], _FOUR_ROUNDINGS),
        **_planned(model, feeds, out, here),
    }


def _length(value: NDArray[Any]) -> float:
    return float(np.linalg.norm(value.astype(np.float64)))


def _errors(found: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    sizes = {name: _length(value) for name, value in exact.items()}
    least = _SMALL * max(sizes.values())
    return {n: _length(found[n].astype(np.float64) - exact[n]) / max(sizes[n], least) for n in exact}


def _moved(found: Arrays, exact: Arrays, feeds: Arrays) -> float:
    """Error of all weights together, relative to how far training has moved them."""
    far = math.hypot(*(_length(value - feeds[f"param.{name}"]) for name, value in exact.items()))
    return math.hypot(*(_length(found[name] - value) for name, value in exact.items())) / far


def _trained(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    is_state = {name: name.startswith(("param.", "buf.")) for name in feeds}
    session = TrainingSession(
        model,
        {name: value for name, value in feeds.items() if is_state[name]},
        update=WeightUpdate(optimizer=Momentum(momentum=MOMENTUM)),
        settings={"lr": RATE},
        provider="cpu",
        threads=1,
    )
    for _ in range(STEPS):
        result = session.step({name: value for name, value in feeds.items() if not is_state[name]})
        assert result.updated, "a gradient overflowed in FP32"
    return {n.removeprefix("param."): v for n, v in session.state().items() if n.startswith("param.")}


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


def in_torch(case: Case, is_exact: bool) -> Trained:
    """Train in torch eager."""
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


def from_torch(case: Case) -> tuple[onnx.ModelProto, Arrays]:
    """Export a module of torch."""
    from campo_onnx.export import step_naming
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.export.torch.arguments import arguments

    model = export_training_step(case.module, case.loss, case.inputs, case.targets, **case.options)
    forward, loss = case.module.forward, case.loss
    batch = arguments(case.inputs, forward, skip=0, kind="input", name_of=step_naming.batch_input).tensors
    batch |= arguments(case.targets, loss, skip=1, kind="target", name_of=step_naming.target).tensors
    state = {step_naming.parameter(n): p for n, p in case.module.named_parameters()}
    state |= {step_naming.buffer(n): b for n, b in case.module.named_buffers()}
    read = {value.name for value in model.graph.input}
    return model, {n: t.detach().numpy().copy() for n, t in (state | batch).items() if n in read}
