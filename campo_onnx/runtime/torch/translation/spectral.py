"""Fourier transforms: complex numbers are pairs on the last axis."""

from typing import Any

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import Node, static
from campo_onnx.runtime.torch.translation.reductions import widened
from campo_onnx.runtime.torch.translation.values import Array, ints

_AXIS_IS_INPUT = 20  # from this opset on


def complex_of(x: Tensor) -> Tensor:
    """Take pairs, or single numbers, on the last axis for complex numbers."""
    x = widened(x)
    if x.shape[-1] == 2:
        return torch.complex(x[..., 0], x[..., 1])
    return torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))


def pairs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Put the parts of complex numbers on a last axis."""
    return torch.stack([x.real, x.imag], -1).to(dtype)


def dft(node: Node, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Tensor:
    """Transform along an axis, or back."""
    default = -2 if node.version >= _AXIS_IS_INPUT else 1
    place = shifted(node.get("axis", default) if axis is None else ints(axis)[0], x.dim())
    inverse, half = node.flag("inverse"), node.flag("onesided")
    count: Any = None if length is None else ints(length)[0]
    if inverse and half:
        return torch.fft.irfft(complex_of(x), count, place).unsqueeze(-1).to(x.dtype)
    if inverse:
        return pairs(torch.fft.ifft(complex_of(x), count, place), x.dtype)
    result = torch.fft.fft(complex_of(x), count, place)
    result = result.narrow(place, 0, result.shape[place] // 2 + 1) if half else result
    return pairs(result, x.dtype)


def stft(
    node: Node, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None
) -> Tensor:
    """Transform frames of a signal."""
    if length is None and window is None:
        raise node.refusal("it has neither a window nor a length of frames")
    size = window.shape[0] if length is None and window is not None else ints(length)[0]  # type: ignore[arg-type]
    signal = x.unsqueeze(-1) if x.dim() == 2 else x
    frames = signal.unfold(1, size, ints(step)[0]).transpose(2, 3)
    result = torch.fft.fft(complex_of(frames if window is None else frames * window.unsqueeze(-1)), dim=2)
    return pairs(result[..., : size // 2 + 1] if node.flag("onesided", True) else result, x.dtype)


ROWS = {
    "DFT": static(1, 2)(dft),
    "STFT": static(1, 3)(stft),
}
