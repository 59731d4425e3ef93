"""Operators of ONNX Runtime that are gradients, or activations of its own."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted, slices
from campo_onnx.runtime.torch.translation.elementwise import div
from campo_onnx.runtime.torch.translation.indexing import from_front, nd_indices
from campo_onnx.runtime.torch.translation.node import Node, Row, raw, static
from campo_onnx.runtime.torch.translation.reductions import widened
from campo_onnx.runtime.torch.translation.values import Array, ints

_QUICK = 1.702  # the factor of a sigmoid that is close to GELU's
_COERCED = 1


def of_values(function: Callable[[Tensor, Tensor], Tensor]) -> Row:
    """Make the row of a gradient that takes that of the result and one more tensor."""
    return Row(lambda node, dy, x: function(widened(dy), widened(x)).to(dy.dtype))


def gelu_gradient(dy: Tensor, x: Tensor, how: str = "none") -> Tensor:
    """Return the gradient of GELU."""
    return torch.ops.aten.gelu_backward(dy, x, approximate=how)


def biased(row: Callable[[Tensor], Tensor]) -> Row:
    """Make the row of an activation of a sum with a bias, which may be left out."""
    return Row(lambda node, x, bias=None: row(x if bias is None else x + bias))


def quick_gelu(node: Node, x: Tensor) -> Tensor:
    """Compute x sigmoid(alpha x)."""
    return x * torch.sigmoid(x * node.get("alpha", _QUICK))


def quick_gelu_gradient(node: Node, gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x sigmoid(alpha x)."""
    alpha, dy, wide = node.get("alpha", _QUICK), widened(gradient), widened(x)
    gate = torch.sigmoid(wide * alpha)
    return (dy * gate * (1 + alpha * wide * (1 - gate))).to(gradient.dtype)


def leaky_gradient(node: Node, gradient: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of a leaky ReLU from its result."""
    return torch.where(y > 0, gradient, gradient * node.get("alpha", 0.01))


def softmax_gradient(node: Node, gradient: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of a softmax from its result."""
    dy, result = widened(gradient), widened(y)
    products = dy * result
    return (products - result * products.sum(node.get("axis", -1), keepdim=True)).to(gradient.dtype)


def log_softmax_gradient(node: Node, gradient: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of a logarithm of a softmax from its result."""
    dy = widened(gradient)
    return (dy - widened(y).exp() * dy.sum(node.get("axis", -1), keepdim=True)).to(gradient.dtype)


def coerced(function: Callable[..., Tensor]) -> Row:
    """Make the row of a gradient of a softmax over all axes from one on."""

    def compute(node: Node, gradient: Tensor, y: Tensor) -> Tensor:
        axis = shifted(node.get("axis", _COERCED), y.dim())
        rows = math.prod(y.shape[:axis])
        flat = Node(**{name: getattr(node, name) for name in Node.__slots__} | {"attributes": {"axis": 1}})
        return function(flat, gradient.reshape(rows, -1), y.reshape(rows, -1)).reshape(y.shape)

    return Row(compute)


def dropout_gradient(
    node: Node,
    gradient: Tensor,
    mask: Tensor,
    ratio: Tensor | None = None,
    training: Tensor | None = None,
) -> Tensor:
    """Return the gradient of a dropout: what was kept, scaled."""
    share = 0.5 if ratio is None else ratio.to(gradient.dtype)
    result = torch.where(mask, gradient / (1 - share), torch.zeros_like(gradient))
    return result if training is None else torch.where(training, result, gradient)


def gather_gradient(node: Node, shape: Array, index: Tensor, gradient: Tensor) -> Tensor:
    """Add up slices where they were taken from along an axis."""
    sizes = ints(shape)
    axis = shifted(node.get("axis", 0), len(sizes))
    zeros = torch.zeros(sizes, dtype=gradient.dtype, device=gradient.device)
    places = [None] * axis + [from_front(index, sizes[axis])]
    return torch.ops.aten.index_put.default(zeros, places, gradient, True)


def gather_elements_gradient(node: Node, gradient: Tensor, shape: Array, index: Tensor) -> Tensor:
    """Add up elements where they were taken from along an axis."""
    sizes = ints(shape)
    axis = shifted(node.get("axis", 0), len(sizes))
    zeros = torch.zeros(sizes, dtype=gradient.dtype, device=gradient.device)
    return zeros.scatter_add(axis, from_front(index, sizes[axis]), gradient)


def gather_nd_gradient(node: Node, shape: Array, index: Tensor, gradient: Tensor) -> Tensor:
    """Add up slices where they were taken from."""
    zeros = torch.zeros(ints(shape), dtype=gradient.dtype, device=gradient.device)
    places = nd_indices(index, node.get("batch_dims", 0))
    return torch.ops.aten.index_put.default(zeros, places, gradient, True)


def slice_gradient(node: Node, gradient: Tensor, shape: Array, *bounds: Array | None) -> Tensor:
    """Put a slice back into a tensor of zeros."""
    sizes = ints(shape)
    result = gradient
    for axis, first, last, step in reversed(list(slices(node, sizes, *bounds))):
        whole = [*result.shape[:axis], sizes[axis], *result.shape[axis + 1 :]]
        zeros = torch.zeros(whole, dtype=gradient.dtype, device=gradient.device)
        part = result.flip(axis) if step < 0 else result
        result = torch.ops.aten.slice_scatter(zeros, part, axis, first, last, abs(step))
    return result


def broadcast_axes(node: Node, one: Array, other: Array) -> tuple[Array, Array]:
    """List the axes over which gradients of two operands that were broadcast are added up."""
    left, right = ints(one), ints(other)
    rank = max(len(left), len(right))
    pairs = zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)
    axes: tuple[list[int], list[int]] = ([], [])
    for axis, (a, b) in reversed(list(enumerate(pairs))):
        if a == 1 and (b != 1 or axis < rank - len(left)):
            axes[0].append(axis)
        if b == 1 and (a != 1 or axis < rank - len(right)):
            axes[1].append(axis)
    return np.array(axes[0], np.int64), np.array(axes[1], np.int64)


def div_gradient(node: Node, gradient: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of both operands of a division."""
    first = div(node, gradient, y)
    return first.sum_to_size(x.shape), (-first * x / y).sum_to_size(y.shape)


def accumulated(
    node: Node, buffer: Tensor, value: Tensor, overwrites: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Add a gradient to those before, or begin anew; say that it is done."""
    done = torch.ones(1, dtype=torch.bool, device=buffer.device)
    total = buffer + value.to(buffer.dtype)
    if overwrites is not None:
        total = torch.where(overwrites.reshape(()), value.to(buffer.dtype), total)
    return done, total


def joined(node: Node, *inputs: Tensor) -> tuple[Tensor, Array]:
    """Join tensors along an axis; say how much each has of it."""
    axis = node.get("axis", 0)
    return torch.cat(inputs, axis), np.array([x.shape[axis] for x in inputs], np.int64)


ROWS = {
    "com.microsoft:BiasFastGeluGrad_dX": Row(
        lambda node, dy, x, bias: gelu_gradient(widened(dy), widened(x + bias), "tanh").to(dy.dtype)
    ),
    "com.microsoft:BiasGelu": biased(F.gelu),
    "com.microsoft:BiasGeluGrad_dX": Row(
        lambda node, dy, x, bias: gelu_gradient(widened(dy), widened(x + bias)).to(dy.dtype)
    ),
    "com.microsoft:BroadcastGradientArgs": static(0, 1)(broadcast_axes),
    "com.microsoft:ConcatTraining": Row(joined),
    "com.microsoft:DivGrad": Row(div_gradient),
    "com.microsoft:DropoutGrad": Row(dropout_gradient),
    "com.microsoft:FastGelu": biased(lambda x: F.gelu(x, approximate="tanh")),
    "com.microsoft:FastGeluGrad": of_values(lambda dy, x: gelu_gradient(dy, x, "tanh")),
    "com.microsoft:GatherElementsGrad": static(1)(gather_elements_gradient),
    "com.microsoft:GatherGrad": static(0)(gather_gradient),
    "com.microsoft:GatherNDGrad": static(0)(gather_nd_gradient),
    "com.microsoft:Gelu": Row(lambda node, x: F.gelu(x)),
    "com.microsoft:GeluGrad": of_values(gelu_gradient),
    "com.microsoft:InPlaceAccumulator": Row(lambda node, *inputs: accumulated(node, *inputs)[1]),
    "com.microsoft:InPlaceAccumulatorV2": Row(accumulated),
    "com.microsoft:LeakyReluGrad": Row(leaky_gradient),
    "com.microsoft:LogSoftmaxGrad": coerced(log_softmax_gradient),
    "com.microsoft:LogSoftmaxGrad_13": Row(log_softmax_gradient),
    "com.microsoft:PassThrough": raw(lambda node, *inputs: inputs),
    "com.microsoft:QuickGelu": Row(quick_gelu),
    "com.microsoft:QuickGeluGrad": Row(quick_gelu_gradient),
    "com.microsoft:ReluGrad": Row(lambda node, dy, y: torch.where(y > 0, dy, torch.zeros_like(dy))),
    "com.microsoft:SigmoidGrad": of_values(lambda dy, y: dy * y * (1 - y)),
    "com.microsoft:SinGrad": of_values(lambda dy, x: dy * torch.cos(x)),
    "com.microsoft:SliceGrad": static(1, 2, 3, 4, 5)(slice_gradient),
    "com.microsoft:SoftmaxGrad": coerced(softmax_gradient),
    "com.microsoft:SoftmaxGrad_13": Row(softmax_gradient),
    "com.microsoft:TanhGrad": of_values(lambda dy, y: dy * (1 - y * y)),
    "com.microsoft:ZeroGradient": Row(lambda node, x, *others: torch.zeros_like(x)),
}
