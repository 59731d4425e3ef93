"""Primitives of JAX on complex numbers, as functions of their real and imaginary parts.

Autodiff has been there before, so that gradients are among the operations that are replaced. An imaginary
part that is zero for certain is left out: such a number goes as its real part.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.fourier import NO_COMPLEX, Complex, Fourier, exact_turns
from campo_onnx.export.jax import composed


def _parts(z: Any) -> Complex:
    return z if isinstance(z, Complex) else Complex(jnp.real(z), jnp.imag(z))


def _is_real(z: Any) -> bool:
    return not isinstance(z, Complex) and jnp.result_type(z).kind != "c"


def _moved(primitive: Any, *operands: Any, **parameters: Any) -> Any:
    """Do the same to both parts; what chooses or counts places has none."""

    def part(x: Any, place: int) -> Any:
        return _parts(x)[place] if isinstance(x, Complex) or jnp.result_type(x).kind in "cf" else x

    def settings(place: int) -> Mapping[str, Any]:
        if "fill_value" not in parameters:
            return parameters
        value = complex(np.nan if parameters["fill_value"] is None else parameters["fill_value"])
        return {**parameters, "fill_value": value.imag if place else value.real}

    real, *imaginary = (
        primitive.bind(*(part(x, place) for x in operands), **settings(place))
        for place in range(1 if all(map(_is_real, operands)) else 2)
    )
    if not imaginary:
        return real
    return list(map(Complex, real, *imaginary)) if primitive.multiple_results else Complex(real, *imaginary)


def _product(x: Any, y: Any, multiply: Callable[[Any, Any], Any] = jnp.multiply) -> Any:
    (a, b), (c, d) = _parts(x), _parts(y)
    if _is_real(x) or _is_real(y):
        halves = [multiply(a, c), multiply(a, d) if _is_real(x) else multiply(b, c)]
        return halves[0] if _is_real(x) and _is_real(y) else Complex(*halves)
    return Complex(multiply(a, c) - multiply(b, d), multiply(a, d) + multiply(b, c))


def _multiplied(primitive: Any, x: Any, y: Any, **settings: Any) -> Any:
    settings["preferred_element_type"] = None
    return _product(x, y, partial(primitive.bind, **settings))


def _quotient(x: Any, y: Any) -> Any:
    if _is_real(y):
        return _parts(x).map(lambda part: part / y)
    c, d = _parts(y)
    scale = jnp.maximum(abs(c), abs(d))  # no square may overflow
    c, d = c / scale, d / scale
    return _parts(_product(x, Complex(c, -d))).map(lambda part: part / (c * c + d * d) / scale)


def _of(real: Any, imaginary: Any) -> Any:
    if isinstance(imaginary, np.ndarray) and not imaginary.any():
        return real
    return Complex(*jnp.broadcast_arrays(real, imaginary))


def _converted(z: Any, *, new_dtype: Any, **_: Any) -> Any:
    if jnp.issubdtype(new_dtype, np.complexfloating):
        real = jnp.finfo(new_dtype).dtype
        return z.astype(real) if _is_real(z) else _parts(z).map(lambda part: part.astype(real))
    return _parts(z).real.astype(new_dtype)


def _conjugate(z: Any, **_: Any) -> Any:
    real, imaginary = _parts(z)
    return real if _is_real(z) else Complex(real, -imaginary)


def _direction(z: Any) -> Complex:
    size = jnp.hypot(*_parts(z))
    return _parts(z).map(lambda part: jnp.where(size == 0, 0, part / jnp.where(size == 0, 1, size)))


def _exponential(z: Any) -> Complex:
    size, angle = jnp.exp(_parts(z).real), _parts(z).imaginary
    return Complex(size * jnp.cos(angle), size * jnp.sin(angle))


def _logarithm(z: Any) -> Complex:
    real, imaginary = _parts(z)
    return Complex(jnp.log(jnp.hypot(real, imaginary)), jnp.arctan2(imaginary, real))


def _power(z: Any, *, y: int) -> Any:
    product = reduce(_product, [z] * abs(y)) if y else jnp.ones_like(_parts(z).real)
    return product if y >= 0 else _quotient(1.0, product)


def _equal(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _parts(x), _parts(y)
    return (a == c) & (b == d)


def _turns(rows: int, columns: int, size: int, like: Any) -> Complex:
    place = np.outer(np.arange(rows), np.arange(columns)) % size
    return exact_turns(np, place, size).map(lambda part: jnp.asarray(part, like.dtype))


def _transformed(z: Any, *, fft_type: Any, fft_lengths: tuple[int, ...]) -> Any:
    fourier = Fourier(jnp, _turns)
    rank = _parts(z).real.ndim
    dims = range(rank - len(fft_lengths), rank)
    match jax.lax.FftType(fft_type):
        case jax.lax.FftType.RFFT:
            return fourier.real_to_complex(z, dims, 0, True)
        case jax.lax.FftType.IRFFT:
            return fourier.complex_to_real(z, dims, 2, fft_lengths[-1])
        case jax.lax.FftType.FFT:
            return fourier.complex_to_complex(z, dims, 0, True)
    return fourier.complex_to_complex(z, dims, 2, False)


_MOVES = frozenset(
    {
        *("add", "add_any", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum", "dynamic_slice"),
        *("dynamic_update_slice", "expand_dims", "gather", "neg", "pad", "reduce_sum", "reshape", "rev"),
        *("scatter", "scatter-add", "select_n", "slice", "split", "squeeze", "stack", "stop_gradient", "sub"),
        *("transpose", "unstack"),
    }
)
"""Primitives of which each part of the result is that of the same part of the operands."""

_RULES: Mapping[str, Callable[..., Any]] = {
    "abs": lambda z: jnp.hypot(*_parts(z)),
    "complex": _of,
    "conj": _conjugate,
    "convert_element_type": _converted,
    "div": _quotient,
    "empty2": lambda *, dtype, memory_space: jnp.zeros((), jnp.finfo(dtype).dtype),
    "eq": _equal,
    "exp": _exponential,
    "fft": _transformed,
    "imag": lambda z: jnp.zeros_like(z) if _is_real(z) else _parts(z).imaginary,
    "integer_pow": _power,
    "log": _logarithm,
    "mul": _product,
    "ne": lambda x, y: ~_equal(x, y),
    "real": lambda z: _parts(z).real,
    "sign": _direction,
    "square": lambda z: _product(z, z),
}


def traced(
    primitive: Any, operands: Sequence[Any], parameters: Mapping[str, Any], place: str
) -> tuple[Any, Sequence[Any]]:
    """Trace what stands for a primitive; gives the jaxpr and the type of each result.

    Complex operands and results are :class:`Complex`, or their real part alone. UnsupportedModelError where
    nothing stands for it.
    """
    name = primitive.name
    if name in _MOVES or name == "dot_general":
        rule: Any = partial(_moved if name in _MOVES else _multiplied, primitive)
    else:
        rule = _RULES.get(name)
        # What is None asks for nothing: newer JAX has parameters that older ones lack.
        parameters = {k: value for k, value in parameters.items() if value is not None}
    try:
        step = None if rule is None else composed.traced_rule(rule, operands, parameters)
    except NotImplementedError as error:
        raise refused(f"an operand of {error} (in {place}) is complex") from None
    if step is None:
        raise refused(f"an operand of {name} (in {place}) is complex")
    closed, results = step
    return closed, results if primitive.multiple_results else [results]


def refused(what: str) -> UnsupportedModelError:
    """Give the error for a complex tensor."""
    return UnsupportedModelError(
        what,
        why=NO_COMPLEX,
        remedy="Compute with real and imaginary parts: z.real and z.imag, and jax.lax.complex(a, b) of two.",
    )
