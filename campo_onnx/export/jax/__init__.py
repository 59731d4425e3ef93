"""JAX training steps as ONNX graphs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export import step_naming
from campo_onnx.export.jax.translate import translate
from campo_onnx.ir.exporter import export_model

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
        ``loss(parameters, **inputs)``, a scalar; what ``jax.value_and_grad`` takes.
    parameters
        A pytree of FP32 arrays, or of ``jax.ShapeDtypeStruct``. A leaf at ``["dense"]["kernel"]``
        is the input ``param.dense.kernel`` and the output ``grad.dense.kernel``.
    example_inputs
        Arrays of the batch's types and shapes, by the name of the argument; the graph calls them
        ``input.<name>``.
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
        If there is control flow, or a primitive without a translation.

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

    def step(arguments: Mapping[str, Any]) -> dict[str, Any]:
        def scaled(p: Any) -> tuple[Any, Any]:
            value = loss(p, **arguments[step_naming.INPUT])
            if jnp.shape(value):
                raise UsageError(
                    f"the loss is not a scalar but of shape {jnp.shape(value)}",
                    remedy="Reduce it, with .mean() say.",
                )
            return (value * arguments[step_naming.LOSS_SCALE] if loss_scale else value), value

        gradients, value = jax.grad(scaled, has_aux=True)(arguments[step_naming.PARAMETER])
        is_scaled = loss_scale and not unscale
        kind = step_naming.SCALED_GRADIENT if is_scaled else step_naming.GRADIENT
        results = {step_naming.LOSS: value, kind: gradients}
        if loss_scale and unscale:
            inverse = 1 / arguments[step_naming.LOSS_SCALE]
            results[step_naming.GRADIENT] = gradients = jax.tree.map(lambda g: g * inverse, gradients)
            total = sum(jnp.abs(g).sum() for g in jax.tree.leaves(gradients))
            results[step_naming.GRADS_FINITE] = total - total == 0
        return results

    arguments: dict[str, Any] = {
        step_naming.PARAMETER: parameters,
        step_naming.INPUT: dict(example_inputs),
    }
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
    """Write any function of a pytree, an optimizer's step say, as a graph of standard operators.

    Parameters
    ----------
    function
        Takes one dictionary and returns one.
    example_arguments
        The dictionary; arrays in it count by type and shape only. Inputs and outputs are named by
        their path in the dictionaries, joined by dots.
    opset
        20 or 21.
    path
        Where to write the model; an existing file is replaced.

    Raises
    ------
    UsageError
        For another opset.
    UnsupportedModelError
        If there is control flow, a primitive without a translation, or a decision by the data.
    """
    if opset not in OPSETS:
        raise UsageError(f"opset {opset} is not supported", remedy="Choose 20 or 21.")
    _check_arrays(dict(example_arguments))
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(dict(example_arguments))
    except (jax.errors.TracerBoolConversionError, jax.errors.ConcretizationTypeError) as error:
        raise UnsupportedModelError(
            "the function looks at the data to decide what to do",
            why=str(error).partition("\n")[0],
            remedy="Choose with jnp.where instead of if.",
        ) from None
    inputs, outputs = _names(dict(example_arguments)), _names(shapes)
    if both := sorted(set(inputs) & set(outputs)):
        raise UsageError(
            f"{', '.join(both)} is an input and an output", remedy="Call the results something else."
        )
    model = translate(closed, inputs, outputs, opset=opset)
    if path is not None:
        export_model(model, Path(path))
    return model


def _check_arrays(tree: Any) -> None:
    for name, leaf in zip(_names(tree), jax.tree_util.tree_leaves(tree, is_leaf=_is_variable), strict=True):
        is_number = isinstance(leaf, bool | int | float | complex)
        if not is_number and not _is_variable(leaf) and not hasattr(leaf, "dtype"):
            raise UsageError(
                f"the argument {name!r} is not an array but {type(leaf).__name__}",
                remedy="Close over it; give eqx.partition(module, eqx.is_array)[0] of an equinox module, and "
                "combine inside.",
            )


def _names(tree: Any) -> Sequence[str]:
    """Name each leaf by its path; that of a variable of flax.nnx ends with the variable."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]]
    return [".".join(map(_part, path)) for path in paths]


def _is_variable(node: Any) -> bool:
    # By name, since flax need not be installed; one that holds several arrays is taken apart as any tree is.
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(node).__mro__)
    is_one = any(kind.startswith("flax.nnx") and kind.endswith(".Variable") for kind in kinds)
    return is_one and len(jax.tree_util.tree_leaves(node)) == 1


def _part(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))
