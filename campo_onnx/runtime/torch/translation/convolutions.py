"""Convolutions, and their gradients where one operator has them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.activations import ACTIVATIONS
from campo_onnx.runtime.torch.translation.node import Node, Row
from campo_onnx.runtime.torch.translation.products import centred
from campo_onnx.runtime.torch.translation.windows import Window, halves, window_of

_aten = torch.ops.aten


def convolution(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve."""
    window = window_of(node, x.shape[2:], weight.shape[2:])
    x, padding = window.padded(x)
    no_more = [0] * len(padding)
    groups = node.get("group", 1)
    return _aten.convolution(x, weight, bias, window.stride, padding, window.dilation, False, no_more, groups)


def transposed(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve backwards: every element adds a kernel to the result."""
    window, extra = transposed_window(node, x.shape[2:], weight.shape[2:])
    groups = node.get("group", 1)
    # What is taken away less at the end than at the beginning is further padding there.
    more = [e + b - a for e, b, a in zip(extra, window.begin, window.end, strict=True)]
    most = [max(pair) for pair in zip(window.stride, window.dilation, strict=True)]
    if all(pad >= 0 for pad in window.begin) and all(
        0 <= m < limit for m, limit in zip(more, most, strict=True)
    ):
        return _aten.convolution(
            x, weight, bias, window.stride, window.begin, window.dilation, True, more, groups
        )
    nothing = [0] * len(extra)
    full = _aten.convolution(x, weight, None, window.stride, nothing, window.dilation, True, nothing, groups)
    cut = [p for b, a, e in zip(window.begin, window.end, extra, strict=True) for p in (a - e, b)]
    result = _aten.constant_pad_nd(full, [-pad for pad in _last_axis_first(cut)], 0)
    return result if bias is None else result + bias.reshape(-1, *[1] * len(extra))


def _last_axis_first(cut: Sequence[int]) -> list[int]:
    """Turn (end, beginning) of axes into what ``constant_pad_nd`` takes: the last axis first."""
    return list(reversed(cut))


def transposed_window(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, list[int]]:
    """Read the window of a ConvTranspose, and the padding of its output."""
    window = window_of(node, sizes, kernel) if _pads_itself(node) else _automatic(node, sizes, kernel)
    extra = list(node.get("output_padding", [0] * len(sizes)))
    request = node.get("output_shape")
    if not request and _pads_itself(node):
        return window, extra
    shape = request[-len(sizes) :] if request else [n * s for n, s in zip(sizes, window.stride, strict=True)]
    totals = [
        s * (n - 1) + e + span - o
        for s, n, e, span, o in zip(window.stride, sizes, extra, window.extent, shape, strict=True)
    ]
    # A larger output than all that there is gets zeros at its end.
    extra = [e + max(-t, 0) for e, t in zip(extra, totals, strict=True)]
    how = node.get("auto_pad", "NOTSET")
    begin, end = halves([max(t, 0) for t in totals], "SAME_UPPER" if how == "SAME_UPPER" else "SAME_LOWER")
    if how in ("SAME_UPPER", "SAME_LOWER") or request:
        return _with_pads(window, begin, end), extra
    return window, extra


def _pads_itself(node: Node) -> bool:
    return node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _automatic(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    nothing = [0] * len(sizes)
    return Window(
        kernel=kernel,
        stride=node.get("strides", [1] * len(sizes)),
        begin=nothing,
        end=nothing,
        dilation=node.get("dilations", [1] * len(sizes)),
    )


def _with_pads(window: Window, begin: Sequence[int], end: Sequence[int]) -> Window:
    return Window(kernel=window.kernel, stride=window.stride, begin=begin, end=end, dilation=window.dilation)


def convolution_gradient(
    node: Node, gradient: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a convolution's input, weight and bias that are read."""
    window = window_of(node, x.shape[2:], weight.shape[2:])
    whole, padding = window.padded(x)
    wanted = [node.has_output(position) for position in range(3)]
    data, weights, bias = _aten.convolution_backward(
        gradient,
        whole,
        weight,
        [weight.shape[0]] if wanted[2] else None,
        window.stride,
        padding,
        window.dilation,
        False,
        [0] * len(padding),
        node.get("group", 1),
        wanted,
    )
    if wanted[0] and not window.is_symmetric:
        data = _aten.constant_pad_nd(data, [-pad for pad in window.pads], 0)
    return data, weights, bias


def convolution_of_integers(
    node: Node, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    """Convolve bytes, less their zero points; FP64 holds every such sum."""
    data, kernel = centred(x, x_zero, 1).double(), centred(weight, w_zero, 0).double()
    return convolution(node, data, kernel).to(torch.int32)


def fused(
    node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None, summand: Tensor | None = None
) -> Tensor:
    """Convolve, add, and apply an activation."""
    result = convolution(node, x, weight, bias)
    result = result if summand is None else result + summand
    name = node.get("activation", "")
    parameters = node.get("activation_params", [])
    if not name:
        return result
    if name == "Clip":
        return result.clamp(*parameters)
    if name not in ACTIVATIONS or (parameters and name != "LeakyRelu"):
        raise node.refusal(f"its activation {name} is not translated")
    if parameters:
        return torch.where(result < 0, result * parameters[0], result)
    return ACTIVATIONS[name](node, result)


ROWS = {
    "Conv": Row(convolution),
    "ConvInteger": Row(convolution_of_integers),
    "ConvTranspose": Row(transposed),
    "com.microsoft:ConvGrad": Row(convolution_gradient),
    "com.microsoft:FusedConv": Row(fused),
}
