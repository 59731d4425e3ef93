"""Discrete Fourier transforms as products with matrices of cosines and sines, which ONNX has.

A long transform is two shorter ones with a turn of each number between them (Cooley and Tukey), as far as
its length has factors. Written for any framework's functions (``torch``, ``jax.numpy``).
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

_WIDEST = 256
"""A transform of more elements is taken apart, if its length has factors."""

_LONGEST = 4096
"""Elements of the longest transform that is one product: its matrices take 128 MiB."""


NO_COMPLEX = "ONNX Runtime lacks complex numbers, and here no pair of real tensors stands for one"
"""Cause of a refusal."""


class Complex(NamedTuple):
    """A complex tensor: two real ones."""

    real: Any
    imaginary: Any

    def map(self, function: Callable[[Any], Any]) -> "Complex":
        """Do the same to both parts."""
        return Complex(function(self.real), function(self.imaginary))


Turns = Callable[[int, int, int, Any], Complex]
"""Gives ``exp(2 pi i j k / size)`` of each row ``j`` and column ``k``, computed in double: by numbers of rows
and columns, ``size``, and a tensor of their type."""


@dataclass(frozen=True)
class Fourier:
    """Transforms in the functions of a framework, `xp`.

    `dims` are axes from the first, and `normalization` is torch's: 0 scales by nothing, 1 by the root of the
    number of elements, 2 by their number. A tensor that is not :class:`Complex` is real.
    """

    xp: Any
    turns: Turns

    def complex_to_complex(self, z: Any, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
        """Transform complex numbers."""
        scale = _scale([_shape(z)[dim] for dim in dims], normalization)
        return self._transformed(z, dims, -1 if forward else 1).map(lambda x: x * scale)

    def real_to_complex(self, x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
        """Transform real numbers; of the last axis half is the conjugate of the other."""
        z = self._transformed(x, dims[-1:], -1)
        if onesided:
            size = x.shape[dims[-1]]
            z = z.map(lambda part: _cut(part, dims[-1], 0, size // 2 + 1))
            if size > _WIDEST:
                z = Complex(z.real, self._without_ends(z.imaginary, dims[-1], size))
        scale = _scale([x.shape[dim] for dim in dims], normalization)
        return self._transformed(z, dims[:-1], -1).map(lambda part: part * scale)

    def _without_ends(self, x: Any, dim: int, size: int) -> Any:
        """Write the zeros exactly: the lowest frequency is real, and the highest of an even number."""
        zero, inner = self.xp.zeros_like(_cut(x, dim, 0, 1)), _cut(x, dim, 1, (size + 1) // 2)
        return self.xp.concatenate([zero, inner, zero] if size % 2 == 0 else [zero, inner], dim)

    def complex_to_real(self, z: Any, dims: Sequence[int], normalization: int, size: int) -> Any:
        """Transform back what :meth:`real_to_complex` gives of `size` numbers along the last axis."""
        z, dim = self._transformed(z, dims[:-1], 1), dims[-1]
        real, imaginary = z.map(lambda x: _cut(x, dim, 0, size // 2 + 1))
        mirrored = [self.xp.flip(_cut(x, dim, 1, (size + 1) // 2), (dim,)) for x in (real, imaginary)]
        whole = Complex(
            self.xp.concatenate([real, mirrored[0]], dim), self.xp.concatenate([imaginary, -mirrored[1]], dim)
        )
        scale = _scale([*(real.shape[d] for d in dims[:-1]), size], normalization)
        return self._transformed(whole, [dim], 1).real * scale

    def _transformed(self, z: Any, dims: Sequence[int], sign: int) -> Any:
        for dim in dims:
            rows = self.rows_transformed(_by_part(partial(self._moved, dim, -1), z), sign)
            z = rows.map(partial(self._moved, -1, dim))
        return z if isinstance(z, Complex) else Complex(z, self.xp.zeros_like(z))

    def rows_transformed(self, z: Any, sign: int) -> Complex:
        """Transform along the last axis."""
        size = _shape(z)[-1]
        first = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
        real = z.real if isinstance(z, Complex) else z
        if size <= _WIDEST or (first == 1 and size <= _LONGEST):
            return _turned(z, self.turns(size, size, size, real), sign, self._rows_times)
        if first == 1:
            raise NotImplementedError(f"a Fourier transform of {size} elements, a prime number")
        second = size // first
        columns = _by_part(lambda x: self._swapped(x.reshape(*x.shape[:-1], first, second)), z)
        turned = self.rows_transformed(columns, sign).map(self._swapped)
        turned = _turned(turned, self.turns(first, second, size, real), sign, operator.mul)
        return self.rows_transformed(turned, sign).map(
            lambda x: self._swapped(x).reshape(*x.shape[:-2], size)
        )

    def _moved(self, source: int, destination: int, x: Any) -> Any:
        return self.xp.moveaxis(x, source, destination)

    def _swapped(self, x: Any) -> Any:
        return self.xp.swapaxes(x, -1, -2)

    def _rows_times(self, x: Any, matrix: Any) -> Any:
        return self.xp.matmul(x.reshape(-1, x.shape[-1]), matrix).reshape(x.shape)


def exact_turns(xp: Any, place: Any, size: int) -> Complex:
    """Give ``exp(2 pi i place / size)`` of whole numbers from 0, in double; zeros are exact.

    A sine of 1e-16 in place of 0 would turn the phase of what is negative and real about.
    """
    angle, half = place * (2 * math.pi / size), 2 * place % size == 0
    cosine = xp.where((4 * place % size == 0) & ~half, 0.0, xp.cos(angle))
    return Complex(cosine, xp.where(half, 0.0, xp.sin(angle)))


def _shape(z: Any) -> Sequence[int]:
    return (z.real if isinstance(z, Complex) else z).shape


def _by_part(function: Callable[[Any], Any], z: Any) -> Any:
    return z.map(function) if isinstance(z, Complex) else function(z)


def _turned(z: Any, by: Complex, sign: int, multiply: Callable[..., Any]) -> Complex:
    c, d = by.real, sign * by.imaginary + 0.0  # no zero is negative: the sign of a sum of them is an angle
    if not isinstance(z, Complex):
        return Complex(multiply(z, c), multiply(z, d))
    real = multiply(z.real, c) - multiply(z.imaginary, d)
    return Complex(real, multiply(z.imaginary, c) + multiply(z.real, d))


def _cut(x: Any, dim: int, first: int, end: int) -> Any:
    return x[(*[slice(None)] * dim, slice(first, end))]


def _scale(sizes: Sequence[int], normalization: int) -> float:
    return 1 / math.prod(sizes) ** (0, 0.5, 1)[normalization]
