"""Integers that stand for multiples of a scale, beside a zero point."""

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.convolutions import convolution
from campo_onnx.runtime.torch.translation.node import Node, Row
from campo_onnx.runtime.torch.translation.products import centred
from campo_onnx.runtime.torch.translation.values import dtype_of


def _along(node: Node, parameter: Tensor, x: Tensor) -> Tensor:
    """Broadcast a scale or zero point: one, one for each element of an axis, or one for each block."""
    axis = node.get("axis", 1)
    if parameter.dim() == 0 or parameter.numel() == 1:
        return parameter.reshape(())
    axis = shifted(axis, x.dim())
    if parameter.dim() == 1:
        return parameter.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    block = node.get("block_size", 0) or -(-x.shape[axis] // parameter.shape[axis])
    return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def rounded(x: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Round to integers of a type, half to even, and bound them."""
    whole = torch.round(x) if zero is None else torch.round(x) + zero.to(x.dtype)
    limits = torch.iinfo(dtype)
    return whole.clamp(limits.min, limits.max).to(torch.int64).to(dtype)


def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Divide by the scale, round and add the zero point."""
    number = node.get("output_dtype", 0)
    if zero is not None:
        dtype = zero.dtype
    else:
        dtype = dtype_of(number, f"the node {node.name!r}") if number else torch.uint8
    by = _along(node, scale, x)
    offset = None if zero is None else _along(node, zero, x)
    return rounded(x.float() / by.float(), offset, dtype)


def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Subtract the zero point and multiply with the scale."""
    wide = x.to(torch.int32)
    wide = wide if zero is None else wide - _along(node, zero, x).to(torch.int32)
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number, f"the node {node.name!r}") if number else scale.dtype
    return (wide.float() * _along(node, scale, x).float()).to(dtype)


def dynamic(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize to bytes over the range of a tensor; return scale and zero point as well."""
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    low, high = torch.minimum(x.amin(), zero), torch.maximum(x.amax(), zero)
    largest = torch.iinfo(torch.uint8).max
    scale = (high - low) / largest
    point = torch.round((-low / scale).clamp(0, largest))
    return rounded(x / scale, point, torch.uint8), scale, point.to(torch.uint8)


def matmul(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    """Multiply matrices of integers, and quantize the product."""
    product = torch.matmul(centred(x, x_zero, -2), centred(y, y_zero, -1))
    rows = x_scale.reshape(-1, 1) if x_scale.dim() == 1 and x_scale.numel() > 1 else x_scale
    by = rows.float() * y_scale.float() / scale.float()
    return rounded(product.float() * by, zero, zero.dtype)


def convolved(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolve integers, and quantize the result; FP64 holds every such sum."""
    whole = None if bias is None else bias.double()
    sums = convolution(node, centred(x, x_zero, 1).double(), centred(weight, w_zero, 0).double(), whole)
    by = x_scale.float() * w_scale.float() / scale.float()
    by = by.reshape(1, -1, *[1] * (x.dim() - 2)) if by.numel() > 1 else by.reshape(())
    return rounded(sums.float() * by, zero, zero.dtype)


ROWS = {
    "DequantizeLinear": Row(dequantize),
    "DynamicQuantizeLinear": Row(dynamic),
    "QLinearConv": Row(convolved),
    "QLinearMatMul": Row(matmul),
    "QuantizeLinear": Row(quantize),
    "com.microsoft:DequantizeLinear": Row(dequantize),
    "com.microsoft:QuantizeLinear": Row(quantize),
}
