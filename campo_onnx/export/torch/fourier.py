"""Discrete Fourier transforms of torch as products with matrices of cosines and sines, which ONNX has.

A long transform is two shorter ones with a turn of each number between them (Cooley and Tukey), as far as
its length has factors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

_WIDEST = 256
"""A transform of more elements is taken apart, if its length has factors."""

_LONGEST = 4096
"""Elements of the longest transform that is one product: its matrices take 128 MiB."""


class Complex(NamedTuple):
    """A complex tensor: two real ones."""

    real: torch.Tensor
    imaginary: torch.Tensor

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Complex":
        """Do the same to both parts."""
        return Complex(function(self.real), function(self.imaginary))


def _turns(rows: int, columns: int, size: int, like: torch.Tensor) -> Complex:
    """Give ``exp(2 pi i j k / size)`` of each row ``j`` and column ``k``, computed in double."""
    j, k = (torch.arange(n, device=like.device) for n in (rows, columns))
    angle = (j.unsqueeze(1) * k % size).double() * (2 * math.pi / size)
    return Complex(angle.cos().to(like.dtype), angle.sin().to(like.dtype))


def _turned(z: Complex, by: Complex, sign: int, multiply: Callable[..., torch.Tensor]) -> Complex:
    real = multiply(z.real, by.real) - sign * multiply(z.imaginary, by.imaginary)
    return Complex(real, multiply(z.imaginary, by.real) + sign * multiply(z.real, by.imaginary))


def _rows_times(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.reshape(-1, x.shape[-1]), matrix).reshape(x.shape)


def _rows_transformed(z: Complex, sign: int) -> Complex:
    """Transform along the last axis."""
    size = z.real.shape[-1]
    first = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    if size <= _WIDEST or (first == 1 and size <= _LONGEST):
        return _turned(z, _turns(size, size, size, z.real), sign, _rows_times)
    if first == 1:
        raise NotImplementedError(f"a Fourier transform of {size} elements, a prime number")
    second = size // first
    columns = z.map(lambda x: x.unflatten(-1, (first, second)).transpose(-1, -2))
    turned = _rows_transformed(columns, sign).map(lambda x: x.transpose(-1, -2))
    turned = _turned(turned, _turns(first, second, size, z.real), sign, torch.mul)
    return _rows_transformed(turned, sign).map(lambda x: x.transpose(-1, -2).flatten(-2))


def _scale(sizes: Sequence[int], normalization: int) -> float:
    return 1 / math.prod(sizes) ** (0, 0.5, 1)[normalization]


def _transformed(z: Complex, dims: Sequence[int], sign: int) -> Complex:
    for dim in dims:
        rows = _rows_transformed(z.map(partial(torch.movedim, source=dim, destination=-1)), sign)
        z = rows.map(partial(torch.movedim, source=-1, destination=dim))
    return z


def _complex_to_complex(z: Complex, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    scale = _scale([z.real.shape[dim] for dim in dims], normalization)
    return _transformed(z, dims, -1 if forward else 1).map(lambda x: x * scale)


def _real_to_complex(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    size = x.shape[dims[-1]]
    z = _transformed(Complex(x, torch.zeros_like(x)), dims[-1:], -1)
    if onesided:
        z = z.map(lambda x: x.narrow(dims[-1], 0, size // 2 + 1))
    scale = _scale([x.shape[dim] for dim in dims], normalization)
    return _transformed(z, dims[:-1], -1).map(lambda x: x * scale)


def _complex_to_real(z: Complex, dims: Sequence[int], normalization: int, size: int) -> torch.Tensor:
    z, dim = _transformed(z, dims[:-1], 1), dims[-1]
    z = z.map(lambda x: x.narrow(dim, 0, size // 2 + 1))
    mirrored = z.map(lambda x: x.narrow(dim, 1, (size - 1) // 2).flip(dim))
    whole = Complex(
        torch.cat([z.real, mirrored.real], dim), torch.cat([z.imaginary, -mirrored.imaginary], dim)
    )
    scale = _scale([*(z.real.shape[d] for d in dims[:-1]), size], normalization)
    return _transformed(whole, [dim], 1).real * scale


RULES: Mapping[str, Callable[..., Any]] = {
    "_fft_c2c": _complex_to_complex,
    "_fft_r2c": _real_to_complex,
    "_fft_c2r": _complex_to_real,
}
"""By operation, the transform of parts."""
