"""Equal computations of a JAX function, shared before it is differentiated."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_SMALL = 1024
"""Elements of constants that are compared; of larger ones, one is equal to itself alone."""


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute equal things once: the same function of arrays, which is differentiated as such.

    In ``softplus(net(x)) - y * net(x)`` the network runs twice. Differentiated as it is written, the gradient
    goes back through both, as ``sigmoid(z)`` and as ``-y``, to cancel in the gradients of the weights alone.
    With one network, which takes less time as well, their difference is what goes back.
    """

    def once(*arguments: Any) -> Any:
        closed, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        run = core.jaxpr_as_fun(closed.replace(jaxpr=_without_equals(closed.jaxpr)))
        return jax.tree.unflatten(jax.tree.structure(results), run(*jax.tree.leaves(arguments)))

    return once


def _without_equals(jaxpr: Any) -> Any:
    earlier: dict[Any, Any] = {}  # by variable: an equal one
    equations: dict[Hashable, list[Any]] = {}
    rest = []
    for equation in jaxpr.eqns:
        inputs = [_earlier(v, earlier) for v in equation.invars]
        is_custom = equation.primitive.name.startswith("custom_")
        params = equation.params if is_custom else {k: _within(v) for k, v in equation.params.items()}
        equation = equation.replace(invars=inputs, params=params)
        alike = equations.setdefault((equation.primitive, *map(_name, inputs)), [])
        equal = next((one for one in alike if _are_equal(one, equation)), None)
        if equal is None:
            alike.append(equation)
            rest.append(equation)
        else:
            earlier.update(zip(equation.outvars, equal.outvars, strict=True))
    return jaxpr.replace(eqns=rest, outvars=[_earlier(v, earlier) for v in jaxpr.outvars])


def _earlier(variable: Any, earlier: dict[Any, Any]) -> Any:
    return variable if isinstance(variable, core.Literal) else earlier.get(variable, variable)


def _within(value: Any) -> Any:
    """A parameter of an equation, with equal computations shared in the functions that it holds."""
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_without_equals(value.jaxpr))
    if isinstance(value, core.Jaxpr):
        return _without_equals(value)
    return tuple(map(_within, value)) if type(value) is tuple else value


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two equations of the same inputs compute the same, and have the same gradients."""
    drops = [isinstance(v, core.DropVar) for v in one.outvars]
    needed = [isinstance(v, core.DropVar) for v in other.outvars]
    is_complete = all(there or not here for here, there in zip(drops, needed, strict=True))
    return is_complete and _operation(one) == _operation(other)


def _operation(equation: Any, *, is_last: bool = False) -> Any:
    """Everything that an equation does, but for what it reads; with `is_last`, without its gradients."""
    if equation.effects:
        return object()
    values = sorted(equation.params.items())
    if equation.primitive.name.startswith("custom_"):
        if not is_last:
            return _derivative(equation)
        values = [(name, value) for name, value in values if isinstance(value, core.ClosedJaxpr)]
    return [(name, _contents(value, is_last=is_last)) for name, value in values]


def _derivative(equation: Any) -> Any:
    """The results of a function with a derivative of its own, and their gradients, as one computation."""
    inputs = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, core.Literal)))
    outputs = [v for v in equation.outvars if not isinstance(v, core.DropVar)]
    if not inputs or not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*inputs, *outputs)):
        return object()
    types = [[jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in vs] for vs in (inputs, outputs)]
    frame = jax.make_jaxpr(lambda *arrays: [arrays[0]] * len(outputs))(*types[0])  # of as many results
    jaxpr = frame.jaxpr.replace(invars=inputs, outvars=outputs, eqns=[equation])
    function = core.jaxpr_as_fun(frame.replace(jaxpr=jaxpr))

    def both(arrays: Any, gradients: Any) -> Any:
        results, pull = jax.vjp(function, *arrays)
        return results, pull(gradients)

    return _contents(jax.make_jaxpr(both)(*types), is_last=True)


def _contents(value: Any, *, is_last: bool) -> Any:
    """A parameter of an equation, as what is equal if and only if it does the same."""
    if isinstance(value, core.ClosedJaxpr):
        return _steps(value.jaxpr, is_last=is_last), [_contents(one, is_last=is_last) for one in value.consts]
    if isinstance(value, core.Jaxpr):
        return _steps(value, is_last=is_last)
    if isinstance(value, list | tuple):
        return [_contents(one, is_last=is_last) for one in value]
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _number(value)
    return type(value), value


def _steps(jaxpr: Any, *, is_last: bool) -> Any:
    """The equations of a function, with numbers for the names of its variables."""
    numbers: dict[Any, int] = {}

    def numbered(variables: Any) -> list[Any]:
        return [_name(v) if isinstance(v, core.Literal) else numbers[v] for v in variables]

    for variable in (*jaxpr.constvars, *jaxpr.invars):
        numbers[variable] = len(numbers)
    steps: list[Any] = [str(variable.aval) for variable in numbers]
    for equation in jaxpr.eqns:
        steps.append((equation.primitive, numbered(equation.invars), _operation(equation, is_last=is_last)))
        for variable in equation.outvars:
            numbers[variable] = len(numbers)
    return [*steps, numbered(jaxpr.outvars)]


def _name(variable: Any) -> Hashable:
    """A variable, or a number as its type and its bytes."""
    if isinstance(variable, core.Literal):
        return str(variable.aval), np.asarray(variable.val).tobytes()
    return variable


def _number(array: Any) -> Any:
    is_plain = not isinstance(array, jax.core.Tracer) and not jnp.issubdtype(array.dtype, jax.dtypes.extended)
    if is_plain and array.size <= _SMALL:
        return str(array.dtype), array.shape, np.asarray(array).tobytes()
    return id(array), array  # equal to itself alone
