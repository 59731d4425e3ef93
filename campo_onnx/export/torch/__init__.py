"""PyTorch training steps as ONNX graphs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import torch

from campo_onnx.devices import datasheet
from campo_onnx.devices.device import Device
from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export import step_naming
from campo_onnx.export.optimizers import BY_NAME, LAMB, SGD, Adam, AdamW, Momentum, Optimizer
from campo_onnx.export.target import TARGETS, Target
from campo_onnx.export.torch.step import Step
from campo_onnx.export.torch.trace import trace
from campo_onnx.export.torch.translate import translate, translations
from campo_onnx.export.torch.weight_gradient import FORMS, WeightGradient
from campo_onnx.ir.exporter import export_model

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Momentum", "export_training_step"]

OPSETS = (20, 21)
"""Gelu stands in 20; from 22 on, ONNX Runtime's CPU provider lacks kernels of random operators."""


def export_training_step(
    module: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    example_inputs: torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    example_targets: torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor] = (),
    *,
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "lamb"] | Optimizer | None = None,
    loss_scale: bool = True,
    unscale: bool = True,
    opset: int = 20,
    target: Target = "standard",
    conv_weight_gradient: WeightGradient = "auto",
    device: str | Device = "v100",
    path: str | Path | None = None,
) -> onnx.ModelProto:
    """Write one training step (forward, loss, backward, perhaps the update) as a graph.

    The module is traced as it is: in training mode unless ``module.eval()`` was called. Nothing of
    it changes. Its weights do not go into the file but are inputs of the graph; what they and all
    other inputs and outputs are called says :mod:`campo_onnx.export.step_naming`.

    Parameters
    ----------
    module
        What is trained. Parameters are FP32; they may live on the ``meta`` device.
    loss
        ``loss(module(*inputs), *targets)``, a scalar.
    example_inputs, example_targets
        Tensors of the batch's types and shapes; their values do not matter.
    optimizer
        The update to write, by name or with its settings; None for gradients as outputs.
    loss_scale
        Whether the loss is multiplied by an input before the backward pass. Gradients come out
        unscaled, and if one is not finite, every new state is the old one.
    unscale
        Whether the graph divides gradients by the loss scale and checks them. Without an optimizer this
        can be left to :class:`~campo_onnx.training.session.TrainingSession`, which does it for all of
        them at once: two nodes in place of two for each parameter.
    opset
        20 or 21.
    target
        Where the step is to run. ``"standard"``: anywhere, by operators of the standard alone;
        ``"onnxruntime"`` and ``"cuda"``: with those of ONNX Runtime 1.31 that take fewer passes over memory,
        on any provider or on CUDA (:data:`campo_onnx.export.target.Target`).
    conv_weight_gradient
        How weights of convolutions get their gradient: ``"matmul"`` (a gather and a matrix product),
        ``"images"`` (a product for each image) or ``"conv"`` (a convolution with a kernel as large as the
        image); ``"auto"`` takes for each layer what is predicted to be fastest.
    device
        For whose figures that is chosen, by name or as a value.
    path
        Where to write the model; an existing file is replaced.

    Returns
    -------
    onnx.ModelProto
        The model; every shape in it is static.

    Raises
    ------
    UsageError
        If the loss is not a scalar, or the arguments do not fit each other.
    UnsupportedModelError
        If the module decides by its data, or an operation has no translation.

    Examples
    --------
    >>> import torch
    >>> step = export_training_step(
    ...     torch.nn.Linear(4, 2), torch.nn.functional.mse_loss, torch.zeros(8, 4), torch.zeros(8, 2),
    ...     optimizer="sgd", loss_scale=False,
    ... )  # doctest: +SKIP
    >>> [value.name for value in step.graph.output]  # doctest: +SKIP
    ['loss', 'new.weight', 'new.bias']
    """
    _check_options(optimizer, opset, conv_weight_gradient, target)
    _check_unscale(unscale, optimizer is not None)
    _check_parameters(module)
    inputs = _named(example_inputs, _argument_names(module.forward), "input")
    targets = _named(example_targets, _argument_names(loss)[1:], "target")
    step = Step(
        module=module,
        loss=loss,
        optimizer=BY_NAME[optimizer] if isinstance(optimizer, str) else optimizer,
        loss_scale=loss_scale,
        unscale=unscale,
        inputs={name: step_naming.batch_input(name) for name in inputs},
        by_keyword=isinstance(example_inputs, Mapping),
        targets=[step_naming.target(name) for name in targets],
    )
    batch = {step_naming.batch_input(n): t for n, t in inputs.items()}
    batch |= {step_naming.target(n): t for n, t in targets.items()}
    known = datasheet.device(device) if isinstance(device, str) else device
    table = translations(conv_weight_gradient, known)
    traced, outputs = trace(step, batch, frozenset(table))
    model = translate(traced, [*step.state(), *batch], outputs, table, opset=opset, target=target)
    if path is not None:
        export_model(model, Path(path))
    return model


def _check_options(optimizer: Any, opset: int, conv_weight_gradient: str, target: str) -> None:
    if opset not in OPSETS:
        raise UsageError(f"opset {opset} is not supported", remedy="Choose 20 or 21.")
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}", remedy=f"Choose one of: {', '.join(TARGETS)}.")
    if isinstance(optimizer, str) and optimizer not in BY_NAME:
        raise UsageError(f"unknown optimizer {optimizer!r}", remedy=f"Choose one of: {', '.join(BY_NAME)}.")
    if optimizer is not None and not isinstance(optimizer, str | Optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} is not an optimizer of campo_onnx.export.torch",
            remedy="Pass campo_onnx.export.torch.Adam(beta1=0.9), say, not one of torch.optim.",
        )
    if conv_weight_gradient not in FORMS:
        raise UsageError(
            f"unknown conv_weight_gradient {conv_weight_gradient!r}",
            remedy=f"Choose one of: {', '.join(map(repr, FORMS))}.",
        )


def _check_unscale(unscale: bool, has_update: bool) -> None:
    if has_update and not unscale:
        raise UsageError(
            "an update in the graph needs unscaled gradients",
            remedy="Leave out unscale=False, or the optimizer and give it to the TrainingSession.",
        )


def _check_parameters(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError(
                f"parameter {name!r} has no shape yet", remedy="Run the lazy module once before exporting."
            )
        if parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"parameter {name!r} is {parameter.dtype}",
                why="training steps are exported in FP32 and lowered afterwards",
                remedy="Call .float() on the module.",
            )


def _argument_names(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins and callables that hide their signature
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in by_position]


def _named(given: Any, names: Sequence[str], kind: str) -> dict[str, torch.Tensor]:
    if isinstance(given, torch.Tensor):
        given = (given,)
    if not isinstance(given, Mapping):
        padded = [*names, *(f"{kind}{i}" for i in range(len(names), len(given)))]
        given = dict(zip(padded, given, strict=False))
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"the example {kind} {name!r} is not a tensor but {type(tensor).__name__}",
                remedy="Bind what is not a tensor with functools.partial, or in a module around yours.",
            )
    return dict(given)
