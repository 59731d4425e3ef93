"""From a jaxpr to an ONNX model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from jax.extend import core

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.graph import Graph
from campo_onnx.export.jax import arrays, elementwise, windows
from campo_onnx.export.jax.translation import Expected, Table, UntranslatableError, dtype_of
from campo_onnx.export.value import Value

TRANSLATIONS: Table = {**arrays.TRANSLATIONS, **elementwise.TRANSLATIONS, **windows.TRANSLATIONS}

_CALLS = frozenset(
    {
        *("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
        *("custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2"),
    }
)
_CONTROL_FLOW = frozenset({"cond", "scan", "switch", "while"})
_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|remat|checkpoint|jit|pjit)\(|[()]")


def translate(closed: Any, inputs: Sequence[str], outputs: Sequence[str], *, opset: int) -> onnx.ModelProto:
    """Write a closed jaxpr as a model.

    Parameters
    ----------
    closed
        What ``jax.make_jaxpr`` returns.
    inputs, outputs
        Names of its arguments and results.
    opset
        Version of the standard operators.

    Raises
    ------
    UnsupportedModelError
        If a primitive, or the way it is used, has no translation.
    """
    _refuse_unknown(closed.jaxpr)
    g = Graph(opset=opset)
    arguments = [
        g.input(name, dtype_of(variable.aval.dtype), variable.aval.shape)
        for name, variable in zip(inputs, closed.jaxpr.invars, strict=True)
    ]
    results = _evaluate(g, closed.jaxpr, closed.consts, arguments, "")
    return g.model(dict(zip(outputs, results, strict=True)), optional_inputs=frozenset())


def _refuse_unknown(jaxpr: Any) -> None:
    names = set(_primitives(jaxpr))
    if flow := sorted(names & _CONTROL_FLOW):
        raise UnsupportedModelError(
            f"control flow cannot be exported: {', '.join(flow)}",
            why="the graph of a training step is one straight line",
            remedy="Write loops in Python, which unrolls them, and choose with jnp.where.",
        )
    if unknown := sorted(names - _CALLS - set(TRANSLATIONS)):
        raise UnsupportedModelError(
            f"no translation for the JAX primitive {', '.join(unknown)}",
            remedy="Write that part with other functions, or report the primitive.",
        )


def _primitives(jaxpr: Any) -> Iterable[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        inner = _called(equation)
        if inner is not None:
            yield from _primitives(inner[0])


def _called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    if equation.primitive.name not in _CALLS:
        return None
    parameters = equation.params
    called = next(parameters[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in parameters)
    return (called.jaxpr, called.consts) if hasattr(called, "jaxpr") else (called, ())


def _evaluate(
    g: Graph, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Value], scope: str
) -> list[Value]:
    values: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    values |= {v: g.constant(np.asarray(c)) for v, c in zip(jaxpr.constvars, constants, strict=True)}

    def read(atom: Any) -> Value:
        if isinstance(atom, core.Literal):
            return g.constant(np.asarray(atom.val, atom.aval.dtype))
        return values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inside = _scope(scope, str(equation.source_info.name_stack))
        inner = _called(equation)
        if inner is not None:
            results = _evaluate(g, *inner, operands, inside)
        else:
            with g.within(inside):
                results = _translated(g, equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scope(outer: str, stack: str) -> str:
    """Turn ``transpose(jvp(encoder))/query`` into ``encoder/query/grad``."""
    is_gradient = "transpose(" in stack or outer.endswith("grad")
    parts = [*outer.removesuffix("grad").split("/"), *_TRANSFORMS.sub("", stack).split("/")]
    return "/".join([*(part for part in parts if part), *(["grad"] if is_gradient else [])])


def _translated(g: Graph, equation: Any, operands: Sequence[Value]) -> list[Value]:
    expected = [Expected(dtype=dtype_of(v.aval.dtype), shape=tuple(v.aval.shape)) for v in equation.outvars]
    where = f"{equation.primitive.name} (in {g.scope or 'the outermost scope'})"
    try:
        made = TRANSLATIONS[equation.primitive.name](g, expected[0], *operands, **_parameters(equation))
    except (UntranslatableError, onnx.shape_inference.InferenceError) as error:
        raise UnsupportedModelError(f"{where} cannot be translated", why=str(error)) from error
    results = [made] if isinstance(made, Value) else list(made)
    for result, wish in zip(results, expected, strict=True):
        if (result.dtype, result.shape) != (wish.dtype, wish.shape):
            raise UnsupportedModelError(
                f"{where} comes out as {(result.dtype, result.shape)} instead of {(wish.dtype, wish.shape)}",
                why="this use of the primitive was never translated",
                remedy="Please report it.",
            )
    return results


def _parameters(equation: Any) -> Mapping[str, Any]:
    return {k: v for k, v in equation.params.items() if not isinstance(v, jax.sharding.Sharding)}
