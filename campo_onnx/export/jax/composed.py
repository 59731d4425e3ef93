"""Primitives that ONNX lacks, as functions of JAX that are traced in their place, after autodiff."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from campo_onnx.export import special

_LARGEST = 32
"""Rows of a matrix up to which each step of a factorization is written into the graph."""


def _in_double(function: Callable[..., Any], x: Any) -> Any:
    return function(jnp, x.astype(jnp.float64)).astype(x.dtype)


def _polygamma(order: Any, x: Any) -> Any:
    if isinstance(order, jax.core.Tracer) or order not in (0, 1):
        return NotImplemented
    return _in_double(special.trigamma if order else special.digamma, x)


def _below(x: Any, y: Any) -> Any:
    """Order floats as sorting does: zeros by their sign, NaN behind all."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x < y
    zeros = (x == 0) & (y == 0) & (1 / x < 0) & (1 / y > 0)
    return (x < y) | zeros | ((x == x) & (y != y))


def _smallest_of_windows(x: Any, **window: Any) -> Any:
    return -lax.reduce_window(-x, -math.inf, lax.max, **window) if x.dtype.kind == "f" else NotImplemented


def _sorted(*operands: Any, dimension: int, num_keys: int) -> Any:
    """Sort by the last key first: each sort keeps the order of what is equal."""
    if num_keys == 1:
        return NotImplemented
    for key in reversed(range(num_keys)):
        others = [x for place, x in enumerate(operands) if place != key]
        first, *rest = lax.sort((operands[key], *others), dimension=dimension, num_keys=1)
        operands = (*rest[:key], first, *rest[key:])
    return operands


def _of_matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of one small matrix to each of many; larger ones are refused by name."""

    @wraps(function)  # for its parameters
    def call(a: Any, *others: Any, **settings: Any) -> Any:
        if max(a.shape[-2:]) > _LARGEST or a.dtype.kind != "f":
            return NotImplemented
        each = partial(function, **settings)
        for _ in range(a.ndim - 2):
            each = jax.vmap(each)
        return each(a, *others)

    return call


def _cholesky(a: Any) -> Any:
    rest, columns = a, []
    for place in range(len(a)):
        column = rest[:, 0] / jnp.sqrt(rest[0, 0])
        columns.append(jnp.pad(column, (place, 0))[:, None])
        rest = rest[1:, 1:] - column[1:, None] * column[1:]
    return jnp.concatenate(columns, 1)


def _solved(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    """Solve a triangular system row by row; a diagonal of ones is not read."""
    if transpose_a:
        a, lower = a.T, not lower
    if not left_side:
        a, b, lower = a.T, b.T, not lower
    if not lower:
        a, b = a[::-1, ::-1], b[::-1]
    rows: list[Any] = []
    for place in range(len(a)):
        row = b[:1] if unit_diagonal else b[:1] / a[place, place]
        rows.append(row)
        b = b[1:] - a[place + 1 :, place, None] * row
    x = jnp.concatenate(rows if lower else rows[::-1])
    return x if left_side else x.T


def _lu(a: Any) -> Sequence[Any]:
    """Eliminate with the largest pivot of each column; gives the factors, the pivots and the permutation."""
    rows, order, pivots = jnp.arange(a.shape[0]), jnp.arange(a.shape[0], dtype=jnp.int32), []
    for place in range(min(a.shape)):
        pivot = jnp.argmax(jnp.where(rows >= place, abs(a[:, place]), -1))
        swapped = jnp.where(rows == place, pivot, jnp.where(rows == pivot, place, rows))
        a, order = a[swapped], order[swapped]
        factors = jnp.where(rows > place, a[:, place] / a[place, place], 0)
        behind = jnp.where(jnp.arange(a.shape[1]) > place, a[place], 0)
        column = jnp.where(rows > place, factors, a[:, place])
        a = (a - factors[:, None] * behind).at[:, place].set(column)
        pivots.append(pivot.astype(jnp.int32)[None])
    return a, jnp.concatenate(pivots), order


def place_of_platform(platforms: Sequence[Sequence[str] | None]) -> int:
    """Give the place of what runs on any platform; where each has a form of its own, any will do."""
    return platforms.index(None) if None in platforms else 0


class _NotHereError(Exception):
    """A function leaves its primitive to others."""


RULES: Mapping[str, Callable[..., Any]] = {
    "atan2": partial(special.atan2, jnp),
    "bessel_i0e": partial(_in_double, partial(special.bessel, 0, True)),
    "bessel_i1e": partial(_in_double, partial(special.bessel, 1, True)),
    "cbrt": lambda x: jnp.sign(x) * abs(x) ** (1 / 3),
    "cholesky": _of_matrices(_cholesky),
    "cumlogsumexp": partial(lax.associative_scan, jnp.logaddexp),
    "cummax": partial(lax.associative_scan, lax.max),
    "cummin": partial(lax.associative_scan, lax.min),
    "cumprod": partial(lax.associative_scan, lax.mul),
    "digamma": partial(_in_double, special.digamma),
    "le_to": lambda x, y: ~_below(y, x),
    "lgamma": partial(_in_double, special.lgamma),
    "lt_to": _below,
    "lu": _of_matrices(_lu),
    "platform_index": lambda *, platforms: jnp.int32(place_of_platform(platforms)),
    "polygamma": _polygamma,
    "reduce_window_min": _smallest_of_windows,
    "sort": _sorted,
    "stack": lambda *parts, axis: jnp.concatenate([jnp.expand_dims(part, axis) for part in parts], axis),
    "triangular_solve": _of_matrices(_solved),
    "unstack": lambda x, *, axis: [
        lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])
    ],
}
"""By primitive, a function of its operands and parameters; NotImplemented leaves it to others."""


def traced(name: str, operands: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
    """Trace the function of a primitive, or give None where there is none for it; see :func:`traced_rule`."""
    rule = RULES.get(name)
    results = None if rule is None else traced_rule(rule, operands, parameters)
    return None if results is None else results[0]


def traced_rule(
    rule: Callable[..., Any], operands: Sequence[Any], parameters: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """Trace a function; gives the jaxpr and a tree of its results, or None where it leaves them to others.

    `operands`: types of arrays, or pairs of them; of a constant its value, which the function may look at.
    """
    try:
        signature(rule).bind(*operands, **parameters)
    except TypeError:  # it does not know a parameter
        return None

    def call(*values: Any) -> Any:
        arguments = [v if _is_type(x) else x for v, x in zip(values, operands, strict=True)]
        results = rule(*arguments, **parameters)
        if results is NotImplemented:
            raise _NotHereError
        return results

    with jax.enable_x64(True):
        try:
            types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), list(operands))
            return jax.make_jaxpr(call, return_shape=True)(*types)
        except _NotHereError:
            return None


def _is_type(x: Any) -> bool:
    return isinstance(x, jax.core.ShapedArray | tuple)
