"""The operators that :mod:`campo_onnx.runtime.torch.translation.raising` writes."""

import math

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import reshaped
from campo_onnx.runtime.torch.translation.node import Node, Row, static
from campo_onnx.runtime.torch.translation.pooling import fits_torch
from campo_onnx.runtime.torch.translation.raising import MAX_POOL_GRADIENT, WEIGHT_GRADIENT
from campo_onnx.runtime.torch.translation.values import Array
from campo_onnx.runtime.torch.translation.windows import window_of

_aten = torch.ops.aten


def weight_gradient(node: Node, images: Tensor, kernel: Tensor, shape: Array | None = None) -> Tensor:
    """Convolve with batch and channels swapped, as the gradient of a weight; they are swapped back here.

    That undoes, as views, what the graph does before: nothing is moved. `shape` is that of a Reshape of the
    convolution's result.
    """
    weight = _weight_gradient(node, images, kernel)
    if shape is None:
        return weight
    taps = weight.transpose(0, 1)
    return taps.reshape(reshaped(node, taps.shape, shape))


def _weight_gradient(node: Node, images: Tensor, kernel: Tensor) -> Tensor:
    window = window_of(node, images.shape[2:], kernel.shape[2:])
    stride, dilation = list(window.dilation), list(window.stride)
    gradient, groups = kernel.transpose(0, 1), node.get("group", 1)
    taps = [
        (size + b + e - span) // s + 1
        for size, b, e, span, s in zip(
            images.shape[2:], window.begin, window.end, window.extent, window.stride, strict=True
        )
    ]
    x = _by_images(images, groups)
    # What the taps read, from the first to the last: pads at the end only say how many taps there are.
    reach = [
        (k - 1) * d + (n - 1) * s + 1
        for k, d, n, s in zip(taps, dilation, gradient.shape[2:], stride, strict=True)
    ]
    padding = list(window.begin)
    is_forward = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1 == n
        for size, p, d, k, s, n in zip(
            x.shape[2:], padding, dilation, taps, stride, gradient.shape[2:], strict=True
        )
    ]
    if not all(is_forward):
        ends = [r - size - p for r, size, p in zip(reach, x.shape[2:], padding, strict=True)]
        both = [pad for pair in zip(reversed(padding), reversed(ends), strict=True) for pad in pair]
        x, padding = _aten.constant_pad_nd(x, both, 0), [0] * len(padding)
    weight = x.new_empty([kernel.shape[0], images.shape[0], *taps])
    return _aten.convolution_backward(
        gradient,
        x,
        weight,
        None,
        stride,
        padding,
        dilation,
        False,
        [0] * len(taps),
        groups,
        [False, True, False],
    )[1]


def _by_images(images: Tensor, groups: int) -> Tensor:
    """Turn (channels of a group, groups and images) into (images, channels)."""
    if groups == 1:
        return images.transpose(0, 1)
    channels, count = images.shape[0], images.shape[1] // groups
    apart = images.reshape(channels, groups, count, *images.shape[2:])
    turned = apart.permute(2, 1, 0, *range(3, apart.dim()))
    return turned.reshape(count, groups * channels, *images.shape[2:])


def gradient_of_max_pool(
    node: Node, gradient: Tensor, x: Tensor, places: Tensor, zeros: Tensor | None = None
) -> Tensor:
    """Return the gradient of what a max pool read; `zeros` has the shape that it is to have."""
    shape = x.shape if zeros is None else zeros.shape
    window = window_of(node, x.shape[2:], node.get("kernel_shape"))
    is_whole = math.prod(shape) == x.numel() and gradient.numel() == places.numel()
    if not is_whole or not fits_torch(window) or x.dim() not in (4, 5) or gradient.dtype != x.dtype:
        result = torch.zeros(math.prod(shape), dtype=gradient.dtype, device=gradient.device)
        return result.scatter_add(0, places.reshape(-1), gradient.reshape(-1)).reshape(shape)
    backward = (
        _aten.max_pool2d_with_indices_backward if x.dim() == 4 else _aten.max_pool3d_with_indices_backward
    )
    inside = places % math.prod(x.shape[2:])  # torch counts through each image
    result = backward(
        gradient.reshape(places.shape),
        x,
        list(window.kernel),
        list(window.stride),
        list(window.begin),
        list(window.dilation),
        False,
        inside,
    )
    return result.reshape(shape)


ROWS = {
    MAX_POOL_GRADIENT.label: Row(gradient_of_max_pool),
    WEIGHT_GRADIENT.label: static(2)(weight_gradient),
}
