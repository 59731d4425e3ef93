"""The interface of a training step whose graph gives gradients and leaves the update to the session."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import counts_updates
from campo_onnx.ir.view import GraphView
from campo_onnx.step import naming as step_naming
from campo_onnx.step.interface import StepInterface, TensorSpec, gradients_of, paired_interface
from campo_onnx.training.weight_update import WeightUpdate

_FLOAT = int(TensorProto.FLOAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientInterface:
    """A gradient graph's inputs and outputs, with what the update adds to them.

    `step` is as if graph and update were one: state, feeds and metrics are those that the same network has
    when its update is in the graph, so that checkpoints fit both.
    """

    step: StepInterface
    gradients: Mapping[str, str]  # output that holds the gradient of each parameter that is trained
    is_scaled: bool  # whether gradients are still times the loss scale

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters that are trained."""
        return {name: self.step.state[step_naming.parameter(name)].shape for name in self.gradients}

    def parameters(self) -> dict[str, str | None]:
        """Inputs that hold parameters, with the output that holds the gradient; None for frozen ones."""
        frozen = [n for n in self.step.state if step_naming.is_parameter(n) and n not in self.step.next_value]
        trained = {step_naming.parameter(name): output for name, output in self.gradients.items()}
        return dict.fromkeys(frozen) | trained


def gradient_interface(
    view: GraphView,
    update: WeightUpdate,
    pairs: Mapping[str, str | None] | None = None,
    constants: Iterable[str] = (),
) -> GradientInterface:
    """Tell apart what a gradient graph reads and gives."""
    paired = paired_interface(view, pairs, constants)
    if any(map(step_naming.is_parameter, paired.next_value)):
        raise UsageError(
            "the graph updates its parameters itself",
            remedy="Leave out `update`, or export the step without an optimizer.",
        )
    frozen = {name for name, output in (pairs or {}).items() if output is None}
    gradients = {
        n: output for n, output in gradients_of(paired).items() if step_naming.parameter(n) not in frozen
    }
    if not gradients:
        raise UsageError(
            "the graph returns no gradients",
            why="no output is called grad.X or scaled_grad.X after an input param.X",
            remedy="Export the step without an optimizer.",
        )
    for name, output in gradients.items():
        _check_fit(paired.state[step_naming.parameter(name)], paired.metrics[output])
    scaled = [output for output in gradients.values() if step_naming.is_scaled_gradient(output)]
    if scaled and (len(scaled) < len(gradients) or step_naming.LOSS_SCALE not in paired.feeds):
        raise UnsupportedModelError(
            f"the gradient {scaled[0]!r} is scaled, and not all of the graph is",
            remedy="Export all gradients scaled, with the input loss_scale, or none.",
        )
    outputs = frozenset(gradients.values())
    lr = step_naming.LEARNING_RATE
    rate = {} if update.optimizer is None else {lr: _spec(lr)}
    step = replace(
        paired,
        state=MappingProxyType({**paired.state, **_own_state(paired, gradients, update)}),
        feeds=MappingProxyType({**paired.feeds, **rate}),
        metrics=MappingProxyType({n: spec for n, spec in paired.metrics.items() if n not in outputs}),
    )
    return GradientInterface(step=step, gradients=MappingProxyType(gradients), is_scaled=bool(scaled))


def _own_state(step: StepInterface, trained: Iterable[str], update: WeightUpdate) -> dict[str, TensorSpec]:
    """List the state that the graph knows nothing of."""
    state: dict[str, TensorSpec] = {}
    for name in trained:
        shape = step.state[step_naming.parameter(name)].shape
        names = [step_naming.state(slot, name) for slot in update.slots]
        names += [step_naming.average(name)] if update.average_decay is not None else []
        state |= {n: _spec(n, shape) for n in names}
    if update.optimizer is not None and counts_updates(update.optimizer):
        state[step_naming.STEP] = _spec(step_naming.STEP, dtype=int(TensorProto.INT64))
    return state


def _spec(name: str, shape: tuple[int, ...] = (), dtype: int = _FLOAT) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def _check_fit(parameter: TensorSpec, gradient: TensorSpec) -> None:
    if str(parameter) != str(gradient) or parameter.dtype != _FLOAT:
        raise UnsupportedModelError(
            f"the parameter {parameter.name!r} is {parameter}, and its gradient {gradient.name!r} {gradient}",
            why="an update takes both in FP32 and of one shape",
        )
