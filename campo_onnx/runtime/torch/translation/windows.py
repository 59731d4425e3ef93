"""Strides, pads and dilations of convolutions and pools, as nodes give them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window that moves over the spatial axes: a number for each of them."""

    kernel: Sequence[int]
    stride: Sequence[int]
    begin: Sequence[int]  # pads before the first elements
    end: Sequence[int]  # pads behind the last elements
    dilation: Sequence[int]

    @property
    def extent(self) -> list[int]:
        """Elements that the window spans."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    @property
    def is_symmetric(self) -> bool:
        """Whether it pads both ends alike, and takes nothing away."""
        return list(self.begin) == list(self.end) and all(pad >= 0 for pad in self.begin)

    @property
    def pads(self) -> list[int]:
        """Pads as ``constant_pad_nd`` takes them: the last axis first."""
        both = zip(reversed(self.begin), reversed(self.end), strict=True)
        return [pad for pair in both for pad in pair]

    def padded(self, x: Tensor, value: Any = 0) -> tuple[Tensor, list[int]]:
        """Pad a tensor where the two ends differ; return it and the pads that are left for both ends."""
        if self.is_symmetric:
            return x, list(self.begin)
        return torch.ops.aten.constant_pad_nd(x, self.pads, value), [0] * len(self.kernel)


def window_of(node: Node, sizes: Sequence[Any], kernel: Sequence[int]) -> Window:
    """Read the window of a node over spatial axes of some sizes."""
    count = len(sizes)
    stride, dilation = node.get("strides", [1] * count), node.get("dilations", [1] * count)
    pads = node.get("pads", [0] * 2 * count)
    begin, end = pads[:count], pads[count:]
    how = node.get("auto_pad", "NOTSET")
    if how == "VALID":
        begin = end = [0] * count
    elif how in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, s, k, d in zip(sizes, stride, kernel, dilation, strict=True)
        ]
        begin, end = halves(totals, how)
    return Window(kernel=kernel, stride=stride, begin=begin, end=end, dilation=dilation)


def halves(totals: Sequence[int], how: str) -> tuple[list[int], list[int]]:
    """Share pads between both ends; the odd one goes to the end, or with ``SAME_LOWER`` to the beginning."""
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return (more, less) if how == "SAME_LOWER" else (less, more)
