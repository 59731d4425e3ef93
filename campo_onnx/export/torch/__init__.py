"""PyTorch training steps as ONNX graphs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import torch

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import BY_NAME, LAMB, SGD, Adam, AdamW, Momentum, Optimizer
from campo_onnx.export.torch.arguments import arguments
from campo_onnx.export.torch.complex_numbers import complex_refused
from campo_onnx.export.torch.dynamic_shapes import exported_at_any_size
from campo_onnx.export.torch.index_traps import trap_indices
from campo_onnx.export.torch.step import Step
from campo_onnx.export.torch.trace import trace
from campo_onnx.export.torch.translate import TRANSLATIONS, translate
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.portable import mark_portable
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.step import naming as step_naming
from campo_onnx.targets.target import Target
from campo_onnx.targets.target import target as target_called

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Momentum", "export_evaluation", "export_training_step"]

OPSETS = (20, 21)
"""Gelu stands in 20; from 22 on, ONNX Runtime's CPU provider lacks kernels of random operators."""


def export_training_step(
    module: torch.nn.Module,
    loss: Callable[..., Any],
    example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
    example_targets: torch.Tensor | Sequence[Any] | Mapping[str, Any] = (),
    *,
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "lamb"] | Optimizer | None = None,
    loss_scale: bool = True,
    unscale: bool = True,
    opset: int = 20,
    target: str | Target | None = None,
    assume: Literal["checks", "batch"] | None = None,
    dynamic_shapes: Mapping[str, Any] | None = None,
    path: str | Path | None = None,
) -> onnx.ModelProto:
    """Write one training step (forward, loss, backward, perhaps the update) as a graph.

    The module is traced as it is: in training mode unless ``module.eval()`` was called, and in FP32, with
    autocast switched off meanwhile. Nothing of it changes. Its weights do not go into the file but are
    inputs of the graph; what they and all other inputs and outputs are called says
    :mod:`campo_onnx.step.naming`.

    Parameters
    ----------
    module
        What is trained. Parameters are FP32; they may live on the ``meta`` device.
    loss
        ``loss(module(*inputs), *targets)``, a scalar; or a pair of it and a dictionary of tensors that the
        step returns as well, such as logits or an accuracy.
    example_inputs, example_targets
        Tensors of the batch's types and shapes, whose values do not matter; by position or, in a mapping, by
        name. They may be nested. What is not a tensor (None, numbers, strings) becomes part of the graph.
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
        For which the file is lowered at once, a name of a device meaning ONNX Runtime on it. By default the
        step is portable, and what plans or runs it lowers it (:mod:`campo_onnx.lowering`).
    assume
        ``"checks"`` takes conditions on data that have no consequence but an error or a warning to pass.
        ``"batch"`` takes every number and flag that the step reads of its tensors to be that of the example;
        an output for each says whether the batch is so, and a session refuses one that is not.
    dynamic_shapes
        Axes whose size changes from batch to batch, by argument of the module or the loss:
        ``{"x": {0: "batch"}, "target": {0: "batch"}}``, or ``torch.export.Dim("batch", min=1, max=64)`` in
        place of a name. The step is traced at several sizes, and the file says for which range it holds:
        without `max` up to four times the example where that can be traced.
    path
        Where to write the model; an existing file is replaced.

    Returns
    -------
    onnx.ModelProto
        The model; every shape in it is static, but for those that depend on `dynamic_shapes`.

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
    _check_options(optimizer, opset, assume, unscale)
    chosen = target_called(target) if isinstance(target, str) else target
    _check_hooks(module, sees_scaled=loss_scale and not unscale)
    _check_averages(module)
    _check_parameters(module)
    step = Step(
        **_called(module, loss, example_inputs, example_targets),
        optimizer=BY_NAME[optimizer] if isinstance(optimizer, str) else optimizer,
        loss_scale=loss_scale,
        unscale=unscale,
        checks_pass=assume == "checks",
    )
    if assume == "batch":
        step = step.on_example()
    model = _written(step, opset, dynamic_shapes)
    if chosen is not None:
        model = as_it_runs(import_model(model, any_type=True), Place(target=chosen)).model
    if path is not None:
        export_model(model, Path(path))
    return model


def export_evaluation(
    module: torch.nn.Module,
    loss: Callable[..., Any],
    example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
    example_targets: torch.Tensor | Sequence[Any] | Mapping[str, Any] = (),
    *,
    opset: int = 20,
    assume: Literal["checks", "batch"] | None = None,
    dynamic_shapes: Mapping[str, Any] | None = None,
    path: str | Path | None = None,
) -> onnx.ModelProto:
    """Write the loss of a module in evaluation mode, and what the loss returns besides.

    The graph reads ``param.X`` and ``buf.X`` as a training step does, so that it runs on what
    :meth:`~campo_onnx.training.session.TrainingSession.state` gives. A batch of another size,
    such as the last one of an epoch, takes `dynamic_shapes`.

    Parameters and errors are those of :func:`export_training_step`. The module's mode is afterwards as
    it was.
    """
    _check_options(None, opset, assume)
    _check_parameters(module)
    step = Step(
        **_called(module, loss, example_inputs, example_targets),
        optimizer=None,
        loss_scale=False,
        unscale=False,
        checks_pass=assume == "checks",
        evaluates=True,
    )
    modes = [(child, child.training) for child in module.modules()]
    try:
        module.eval()
        step = step.on_example() if assume == "batch" else step
        model = _written(step, opset, dynamic_shapes)
    finally:
        for child, mode in modes:
            child.training = mode
    if path is not None:
        export_model(model, Path(path))
    return model


def _called(module: torch.nn.Module, loss: Callable[..., Any], inputs: Any, targets: Any) -> dict[str, Any]:
    """Say what runs, and on what."""
    return {
        "module": module,
        "loss": loss,
        "inputs": arguments(inputs, module.forward, skip=0, kind="input", name_of=step_naming.batch_input),
        "targets": arguments(targets, loss, skip=1, kind="target", name_of=step_naming.target),
    }


def _written(step: Step, opset: int, dynamic_shapes: Mapping[str, Any] | None) -> onnx.ModelProto:
    change = dynamic_shapes is not None

    def written(step: Step, is_first: bool = True) -> tuple[onnx.ModelProto, torch.fx.GraphModule]:
        traced, inputs, outputs = trace(step, frozenset(TRANSLATIONS), is_first=is_first)
        trap_indices(traced.graph, inputs, outputs)
        model = translate(traced, inputs, outputs, TRANSLATIONS, opset=opset, sizes_change=change)
        return model, traced

    if dynamic_shapes is None:
        model = written(step)[0]
    elif step.recorded is not None:
        raise UsageError(
            "batches of changing sizes are not like the example", remedy="Leave out assume='batch'."
        )
    else:
        model = exported_at_any_size(step, dynamic_shapes, written)
    mark_portable(model)
    return model


def _check_options(optimizer: Any, opset: int, assume: Any, unscale: bool = True) -> None:
    if opset not in OPSETS:
        raise UsageError(f"opset {opset} is not supported", remedy="Choose 20 or 21.")
    if isinstance(optimizer, str) and optimizer not in BY_NAME:
        raise UsageError(f"unknown optimizer {optimizer!r}", remedy=f"Choose one of: {', '.join(BY_NAME)}.")
    if optimizer is not None and not isinstance(optimizer, str | Optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} is not an optimizer of campo_onnx.export.torch",
            remedy="Pass campo_onnx.export.torch.Adam(beta1=0.9), for example, not one of torch.optim.",
        )
    if assume not in (None, "checks", "batch"):
        raise UsageError(f"unknown assume {assume!r}", remedy="Choose 'checks' or 'batch', or leave it out.")
    if optimizer is not None and not unscale:
        raise UsageError(
            "an update in the graph needs unscaled gradients",
            remedy="Leave out unscale=False, or the optimizer and give it to the TrainingSession.",
        )


def _check_hooks(module: torch.nn.Module, *, sees_scaled: bool) -> None:
    for name, parameter in module.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UnsupportedModelError(
                f"parameter {name!r} has a hook that runs after its gradient is stored",
                why="a graph stores none",
                remedy="Remove it, and export with an optimizer if that is what it does.",
            )
        if parameter._backward_hooks and sees_scaled:
            raise UsageError(
                f"the hook on parameter {name!r} would get a scaled gradient",
                remedy="Leave out unscale=False: the graph then unscales gradients before their hooks.",
            )


def _check_averages(module: torch.nn.Module) -> None:
    for name, child in module.named_modules():
        if not isinstance(child, torch.nn.modules.batchnorm._BatchNorm) or not child.training:
            continue
        if child.track_running_stats and child.momentum is None:
            raise UnsupportedModelError(
                f"module {name!r} averages over all batches so far (momentum=None)",
                why="how much a batch counts would be another number in each step",
                remedy="Give it a momentum, or use torch.compile(model, backend='campo_onnx').",
            )


def _check_parameters(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError(
                f"parameter {name!r} has no shape yet", remedy="Run the lazy module once before exporting."
            )
        if parameter.is_complex():
            raise complex_refused(f"parameter {name!r}")
        if parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"parameter {name!r} is {parameter.dtype}",
                why="training steps are exported in FP32 and lowered afterwards",
                remedy="Call .float() on the module.",
            )
