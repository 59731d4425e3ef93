"""JAX training steps as ONNX graphs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.jax.state import check_arrays, names_of, tensors_of, together
from campo_onnx.export.jax.translate import translate
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.portable import mark_portable
from campo_onnx.step import naming as step_naming

__all__ = ["export_function", "export_training_step"]

OPSETS = (20, 21)


def export_training_step(
    loss: Callable[..., Any],
    parameters: Any,
    example_inputs: Mapping[str, Any],
    *,
    loss_scale: bool = True,
    unscale: bool = True,
    opset: int = 20,
    path: str | Path | None = None,
) -> onnx.ModelProto:
    """Write the loss and its gradients as a graph of standard operators.

    Parameters
    ----------
    loss
        ``loss(parameters, **inputs)``, a scalar; what ``jax.value_and_grad`` takes. Or a pair of it and a
        dictionary of further arrays that the step returns: ``{"accuracy": a}`` is ``output.accuracy``.
    parameters
        A pytree of FP32 arrays, or of ``jax.ShapeDtypeStruct``. A leaf at ``["dense"]["kernel"]``
        is the input ``param.dense.kernel`` and the output ``grad.dense.kernel``.
    example_inputs
        Arrays of the batch's types and shapes, by the name of the argument; the graph calls them
        ``input.<name>``. They may be nested. None, truth values and texts become part of the graph.
    loss_scale
        Whether the loss is multiplied by an input before the backward pass. Gradients come out
        unscaled, with ``grads_finite`` saying whether all of them are finite.
    unscale
        Whether the graph divides gradients by the loss scale and checks them; see
        :func:`campo_onnx.export.torch.export_training_step`.
    opset
        20 or 21.
    path
        Where to write the model; an existing file is replaced.

    Raises
    ------
    UsageError
        If the loss is not a scalar.
    UnsupportedModelError
        If there is a loop of unknown length, or a primitive without a translation.

    Examples
    --------
    >>> def loss(p, x, y):
    ...     return ((x @ p["w"] - y) ** 2).mean()
    >>> step = export_training_step(
    ...     loss, {"w": jnp.zeros((4, 2))}, {"x": jnp.zeros((8, 4)), "y": jnp.zeros((8, 2))}, loss_scale=False
    ... )  # doctest: +SKIP
    >>> [value.name for value in step.graph.output]  # doctest: +SKIP
    ['loss', 'grad.w']
    """
    inputs, fixed = tensors_of(dict(example_inputs))

    def step(arguments: Mapping[str, Any]) -> dict[str, Any]:
        def scaled(p: Any) -> tuple[Any, Any]:
            value, shown = _loss_and_outputs(loss(p, **together(arguments[step_naming.INPUT], fixed)))
            return (value * arguments[step_naming.LOSS_SCALE] if loss_scale else value), (value, shown)

        gradients, (value, shown) = jax.grad(scaled, has_aux=True)(arguments[step_naming.PARAMETER])
        is_scaled = loss_scale and not unscale
        kind = step_naming.SCALED_GRADIENT if is_scaled else step_naming.GRADIENT
        results = {step_naming.LOSS: value, kind: gradients}
        if shown:
            results[step_naming.OUTPUT] = shown
        if loss_scale and unscale:
            inverse = 1 / arguments[step_naming.LOSS_SCALE]
            results[step_naming.GRADIENT] = gradients = jax.tree.map(lambda g: g * inverse, gradients)
            total = sum(jnp.abs(g).sum() for g in jax.tree.leaves(gradients))
            results[step_naming.GRADS_FINITE] = total - total == 0
        return results

    arguments: dict[str, Any] = {step_naming.PARAMETER: parameters, step_naming.INPUT: inputs}
    if loss_scale:
        arguments[step_naming.LOSS_SCALE] = jax.ShapeDtypeStruct((), jnp.float32)
    return export_function(step, arguments, opset=opset, path=path)


def export_function(
    function: Callable[[Any], Any],
    example_arguments: Mapping[str, Any],
    *,
    opset: int = 20,
    path: str | Path | None = None,
) -> onnx.ModelProto:
    """Write any function of a pytree, such as an optimizer's step, as a graph of standard operators.

    `function`: takes one dictionary and returns one.
    `example_arguments`: the dictionary; arrays in it count by type and shape only. Inputs and outputs are
    named by their path in the dictionaries, joined by dots.
    `opset`: 20 or 21.
    `path`: where to write the model; an existing file is replaced.

    Raises UsageError for another opset, and UnsupportedModelError if there is a loop of unknown length, a
    primitive without a translation, or a decision by the data.
    """
    if opset not in OPSETS:
        raise UsageError(f"opset {opset} is not supported", remedy="Choose 20 or 21.")
    check_arrays(dict(example_arguments))
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(dict(example_arguments))
    except (jax.errors.TracerBoolConversionError, jax.errors.ConcretizationTypeError) as error:
        raise UnsupportedModelError(
            "the function looks at the data to decide what to do",
            why=str(error).partition("\n")[0],
            remedy="Choose with jnp.where instead of if.",
        ) from None
    inputs, outputs = names_of(dict(example_arguments)), names_of(shapes)
    if both := sorted(set(inputs) & set(outputs)):
        raise UsageError(
            f"{', '.join(both)} is an input and an output", remedy="Call the results something else."
        )
    model = translate(closed, inputs, outputs, opset=opset)
    mark_portable(model)
    if path is not None:
        export_model(model, Path(path))
    return model


def _loss_and_outputs(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Tell the loss from what else the step returns: a loss may return both."""
    shown: dict[str, Any] = {}
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        returned, shown = returned[0], dict(returned[1])
    if not hasattr(returned, "dtype") and not isinstance(returned, int | float):
        raise UsageError(
            f"the loss is not a scalar but {type(returned).__name__}",
            remedy="Return the scalar alone, or (loss, {'logits': logits}) if the step should return more.",
        )
    if jnp.shape(returned):
        raise UsageError(
            f"the loss is not a scalar but of shape {jnp.shape(returned)}",
            remedy="Reduce it, for example with .mean().",
        )
    return returned, shown
