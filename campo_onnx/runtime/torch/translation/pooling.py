"""Pools over windows and over all of space, and what undoes them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Node, Row, static
from campo_onnx.runtime.torch.translation.reductions import farthest, widened
from campo_onnx.runtime.torch.translation.values import Array, ints
from campo_onnx.runtime.torch.translation.windows import Window, window_of

_aten = torch.ops.aten
_MAX_POOLS = {2: _aten.max_pool2d_with_indices, 3: _aten.max_pool3d_with_indices}
_SPACE_IN_LOW = 2  # the most axes of space that torch averages over in low precision
_AVERAGES: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def max_pool(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    """Take the largest element of each window, and its place in the whole tensor."""
    window = _reaching(node, x, window_of(node, x.shape[2:], node.get("kernel_shape")))
    if fits_torch(window):
        values, places = max_pooled(x, window)
    else:
        whole = _aten.constant_pad_nd(x, window.pads, farthest(x.dtype, -math.inf))
        values, places = max_pooled(whole, _unpadded(window))
        places = _places_inside(places, whole.shape[2:], window.begin, x.shape[2:])
    if not node.has_output(1):
        return (values,)
    if node.flag("storage_order"):
        places = _column_major(places, x.shape[2:])
    return values, counted_through(places, x.shape)


def counted_through(places: Tensor, shape: Sequence[Any]) -> Tensor:
    """Count places through the whole tensor, as ONNX does, where torch counts through each image."""
    images = torch.arange(shape[0] * shape[1], device=places.device) * math.prod(shape[2:])
    return places + images.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))


def fits_torch(window: Window) -> bool:
    """Whether torch takes the pads: alike at both ends, and at most half of the kernel."""
    return window.is_symmetric and all(
        2 * pad <= size for pad, size in zip(window.begin, window.kernel, strict=True)
    )


def max_pooled(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Pool with torch's kernel for two or three axes of space; one axis gets another of one element."""
    arguments = [list(window.kernel), list(window.stride), list(window.begin), list(window.dilation)]
    data = x if x.is_floating_point() or x.dtype == torch.int64 else x.to(torch.int64)
    if x.dim() == 3:
        arguments = [[1, *arguments[0]], [1, *arguments[1]], [0, *arguments[2]], [1, *arguments[3]]]
        values, places = _MAX_POOLS[2](data.unsqueeze(2), *arguments)
        return values.squeeze(2).to(x.dtype), places.squeeze(2)
    values, places = _MAX_POOLS[x.dim() - 2](data, *arguments)
    return values.to(x.dtype), places


def _unpadded(window: Window) -> Window:
    nothing = [0] * len(window.kernel)
    return Window(
        kernel=window.kernel, stride=window.stride, begin=nothing, end=nothing, dilation=window.dilation
    )


def _reaching(node: Node, x: Tensor, window: Window) -> Window:
    """Pad the ends so far that the last windows which ``ceil_mode`` counts in are whole."""
    if not node.flag("ceil_mode"):
        return window
    ends = [
        _ceiled_end(size, *numbers)
        for size, *numbers in zip(
            x.shape[2:], window.extent, window.stride, window.begin, window.end, strict=True
        )
    ]
    return Window(
        kernel=window.kernel, stride=window.stride, begin=window.begin, end=ends, dilation=window.dilation
    )


def _ceiled_end(size: Any, span: int, stride: int, begin: int, end: int) -> Any:
    """Return the pad at the end; a window that would begin in it is not counted in."""
    count = -(-(size + begin + end - span) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max((count - 1) * stride + span - size - begin, end)


def _places_inside(
    places: Tensor, padded: Sequence[Any], begin: Sequence[int], sizes: Sequence[Any]
) -> Tensor:
    """Count places in a padded image as those in the image."""
    inside = torch.zeros_like(places)
    for axis in range(len(sizes)):
        step = math.prod(padded[axis + 1 :])
        inside = inside * sizes[axis] + (places // step % padded[axis] - begin[axis])
    return inside


def _column_major(places: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Count places with the first axis of space as the fastest."""
    result = torch.zeros_like(places)
    for axis in reversed(range(len(sizes))):
        step = math.prod(sizes[axis + 1 :])
        result = result * sizes[axis] + places // step % sizes[axis]
    return result


def average_pool(node: Node, x: Tensor) -> Tensor:
    """Average each window, over the elements that lie in the image or, if asked for, in the pads too."""
    window = window_of(node, x.shape[2:], node.get("kernel_shape"))
    counts_pads = node.flag("count_include_pad")
    is_plain = set(window.dilation) <= {1} and not node.flag("ceil_mode")
    if is_plain and fits_torch(window) and x.dim() - 2 in _AVERAGES:
        pool = _AVERAGES[x.dim() - 2]
        data = widened(x) if x.dim() > _SPACE_IN_LOW + 2 else x
        sizes = list(window.kernel), list(window.stride), list(window.begin)
        return pool(data, *sizes, False, counts_pads).to(x.dtype)
    wide = widened(x)
    reaching = _reaching(node, x, window)
    ones = torch.ones([1, 1, *x.shape[2:]], dtype=wide.dtype, device=x.device)
    if counts_pads:
        ones = _aten.constant_pad_nd(ones, window.pads, 1)
        more = [e - old for e, old in zip(reaching.end, window.end, strict=True)]
        beyond = Window(
            kernel=window.kernel,
            stride=window.stride,
            begin=[0] * len(more),
            end=more,
            dilation=window.dilation,
        )
        counts = summed(ones, beyond)
    else:
        counts = summed(ones, reaching)
    return (summed(wide, reaching) / counts).to(x.dtype)


def summed(x: Tensor, window: Window) -> Tensor:
    """Add up the elements of each window: a convolution of every channel by itself with ones."""
    whole = _aten.constant_pad_nd(x, window.pads, 0)
    images = whole.reshape(-1, 1, *whole.shape[2:])
    ones = torch.ones([1, 1, *window.kernel], dtype=x.dtype, device=x.device)
    nothing = [0] * len(window.kernel)
    sums = _aten.convolution(images, ones, None, window.stride, nothing, window.dilation, False, nothing, 1)
    return sums.reshape(*x.shape[:2], *sums.shape[2:])


def lp_pool(node: Node, x: Tensor) -> Tensor:
    """Take the norm of each window."""
    p = node.get("p", 2)
    window = _reaching(node, x, window_of(node, x.shape[2:], node.get("kernel_shape")))
    return summed(widened(x).abs().pow(p), window).pow(1 / p).to(x.dtype)


def _space(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def global_lp_pool(node: Node, x: Tensor) -> Tensor:
    """Take the norm over space."""
    p = node.get("p", 2)
    return widened(x).abs().pow(p).sum(_space(x), keepdim=True).pow(1 / p).to(x.dtype)


def max_unpool(node: Node, x: Tensor, places: Tensor, shape: Array | None = None) -> Tensor:
    """Put elements where a pool found them, in a tensor of zeros."""
    kernel = node.get("kernel_shape")
    window = window_of(node, x.shape[2:], kernel)
    before = [
        (n - 1) * s + span - b - e
        for n, s, span, b, e in zip(
            x.shape[2:], window.stride, window.extent, window.begin, window.end, strict=True
        )
    ]
    counted = [*x.shape[:2], *before]
    return put(x, places, counted if shape is None else ints(shape))


def put(x: Tensor, places: Tensor, shape: Sequence[Any]) -> Tensor:
    """Put elements at places that count through the result."""
    zeros = torch.zeros(math.prod(shape), dtype=x.dtype, device=x.device)
    return zeros.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(list(shape))


def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    """Sample at points of a grid."""
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    mode = node.get("mode", "linear")
    return F.grid_sample(
        x,
        grid.to(x.dtype),
        modes.get(mode, mode),
        node.get("padding_mode", "zeros"),
        node.flag("align_corners"),
    )


def affine_grid(node: Node, theta: Tensor, size: Array) -> Tensor:
    """Make the points that an affine map of a grid gives."""
    return F.affine_grid(theta, ints(size), node.flag("align_corners"))


def lrn(node: Node, x: Tensor) -> Tensor:
    """Divide by a power of the mean square of channels nearby."""
    size = node.get("size")
    wide = widened(x)
    squares = _aten.constant_pad_nd(wide.square(), [0, 0] * (x.dim() - 2) + [(size - 1) // 2, size // 2], 0)
    sums = sum(squares.narrow(1, first, x.shape[1]) for first in range(size))
    bounded = node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * sums
    return (wide / bounded.pow(node.get("beta", 0.75))).to(x.dtype)


def col2im(node: Node, x: Tensor, image: Array, block: Array) -> Tensor:
    """Add up the columns of blocks where they lie in an image."""
    sizes, kernel = ints(image), ints(block)
    window = window_of(node, sizes, kernel)
    counts = [
        (size + b + e - span) // s + 1
        for size, b, e, span, s in zip(
            sizes, window.begin, window.end, window.extent, window.stride, strict=True
        )
    ]
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    padded = [size + b + e for size, b, e in zip(sizes, window.begin, window.end, strict=True)]
    place = torch.zeros([1] * (2 * len(sizes)), dtype=torch.int64, device=x.device)
    for axis in range(len(sizes)):
        inside = torch.arange(kernel[axis], device=x.device) * window.dilation[axis]
        first = torch.arange(counts[axis], device=x.device) * window.stride[axis]
        shape = [1] * (2 * len(sizes))
        both = (inside.unsqueeze(1) + first).reshape(-1)
        shape[axis], shape[len(sizes) + axis] = kernel[axis], counts[axis]
        place = place * padded[axis] + both.reshape(shape)
    columns = x.reshape(n, channels, -1)
    places = place.reshape(1, 1, -1).expand(columns.shape)
    sums = torch.zeros([n, channels, math.prod(padded)], dtype=x.dtype, device=x.device)
    whole = sums.scatter_add(2, places, columns).reshape(n, channels, *padded)
    return _aten.constant_pad_nd(whole, [-pad for pad in window.pads], 0)


ROWS = {
    "AffineGrid": static(1)(affine_grid),
    "AveragePool": Row(average_pool),
    "Col2Im": static(1, 2)(col2im),
    "GlobalAveragePool": Row(lambda node, x: x.mean(_space(x), keepdim=True)),
    "GlobalLpPool": Row(global_lp_pool),
    "GlobalMaxPool": Row(lambda node, x: x.amax(_space(x), keepdim=True)),
    "GridSample": Row(grid_sample),
    "LRN": Row(lrn),
    "LpPool": Row(lp_pool),
    "MaxPool": Row(max_pool),
    "MaxUnpool": static(2)(max_unpool),
    "com.microsoft:GridSample": Row(grid_sample),
}
