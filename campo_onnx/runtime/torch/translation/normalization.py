"""Normalizations, computed in FP32 where their input is lower, and rounded once."""

import math
from collections.abc import Sequence

import torch
from onnx import TensorProto
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import Node, Row
from campo_onnx.runtime.torch.translation.reductions import widened
from campo_onnx.runtime.torch.translation.values import dtype_of

_TRAINING_IS_SAID = 14  # from this opset on an attribute says it; before, the number of outputs does
_SCALES_CHANNELS = 21  # from this opset on GroupNormalization scales channels; before, groups
_EPSILON = 1e-5


def by_channel(x: Tensor, rank: int) -> Tensor:
    """Broadcast a number a channel over batch and space."""
    return x.reshape([1, -1] + [1] * (rank - 2))


def batch_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    """Normalize channels, by running statistics or, when training, by the batch's."""
    epsilon, rank = node.get("epsilon", _EPSILON), x.dim()
    said = node.version >= _TRAINING_IS_SAID
    if not (node.flag("training_mode") if said else node.has_output(1)):
        slope = widened(scale) * torch.rsqrt(widened(var) + epsilon)
        shift = widened(bias) - widened(mean) * slope
        return ((widened(x) * by_channel(slope, rank) + by_channel(shift, rank)).to(x.dtype),)
    result, batch_mean, batch_var = normalized_batch(x, scale, bias, epsilon)
    momentum = node.get("momentum", 0.9)
    running = [
        (widened(old) * momentum + new * (1 - momentum)).to(old.dtype)
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return result, *running, batch_mean.to(mean.dtype), batch_var.to(var.dtype)


def normalized_batch(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize channels by the batch's statistics; return these as well."""
    wide, rank = widened(x), x.dim()
    var, mean = torch.var_mean(wide, [0, *range(2, rank)], correction=0)
    slope = torch.rsqrt(var + epsilon) * widened(scale)
    result = (wide - by_channel(mean, rank)) * by_channel(slope, rank) + by_channel(widened(bias), rank)
    return result.to(x.dtype), mean, var


def batch_norm_internal(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    """Normalize channels; return running statistics, and what the gradient needs."""
    epsilon, momentum = node.get("epsilon", _EPSILON), node.get("momentum", 0.9)
    result, batch_mean, batch_var = normalized_batch(x, scale, bias, epsilon)
    running_mean = mean * momentum + batch_mean * (1 - momentum)
    running_var = var * momentum + batch_var * (1 - momentum)
    inverse = torch.rsqrt(batch_var + epsilon)
    return result, running_mean.to(mean.dtype), running_var.to(var.dtype), batch_mean, inverse


def batch_norm_gradient(
    node: Node, gradient: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, scale and bias."""
    rank, over = x.dim(), [0, *range(2, x.dim())]
    dy = widened(gradient)
    normal = (widened(x) - by_channel(mean, rank)) * by_channel(inverse, rank)
    bias_gradient, scale_gradient = dy.sum(over), (dy * normal).sum(over)
    count = math.prod(x.shape[axis] for axis in over)
    centred = dy - by_channel(bias_gradient / count, rank) - normal * by_channel(scale_gradient / count, rank)
    data = centred * by_channel(widened(scale) * inverse, rank)
    return data.to(x.dtype), scale_gradient.to(scale.dtype), bias_gradient.to(scale.dtype)


def layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Normalize the last axes; return mean and inverse deviation as well."""
    axis, epsilon = shifted(node.get("axis", -1), x.dim()), node.get("epsilon", _EPSILON)
    result, *statistics = normalized_layer(x, list(range(axis, x.dim())), scale, bias, epsilon)
    if not node.has_output(1):
        return (result,)
    stash = dtype_of(node.get("stash_type", TensorProto.FLOAT), f"the node {node.name!r}")
    return result, *(statistic.to(stash) for statistic in statistics)


def normalized_layer(
    x: Tensor, over: Sequence[int], scale: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize over axes, scale and shift; return mean and inverse deviation as well."""
    shape = x.shape[over[0] :]
    fits = all(p is None or (p.shape == shape and p.dtype == x.dtype) for p in (scale, bias))
    if fits and widened(x) is x:
        return torch.ops.aten.native_layer_norm(x, list(shape), scale, bias, epsilon)
    wide = widened(x)
    var, mean = torch.var_mean(wide, list(over), correction=0, keepdim=True)
    inverse = torch.rsqrt(var + epsilon)
    return affine((wide - mean) * inverse, scale, bias).to(x.dtype), mean, inverse


def affine(x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift, where there is something to do it by."""
    x = x if scale is None else x * widened(scale)
    return x if bias is None else x + widened(bias)


def layer_norm_gradient(
    node: Node, gradient: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, scale and bias."""
    axis = shifted(node.get("axis", -1), x.dim())
    over, before = list(range(axis, x.dim())), list(range(axis))
    dy, normal = widened(gradient), (widened(x) - _kept(mean, x)) * _kept(inverse, x)
    part = dy * widened(scale)
    centred = part - part.mean(over, keepdim=True) - normal * (part * normal).mean(over, keepdim=True)
    scales, shifts = (dy * normal).sum(before), dy.sum(before)
    return (centred * _kept(inverse, x)).to(x.dtype), scales.to(scale.dtype), shifts.to(scale.dtype)


def _kept(statistic: Tensor, x: Tensor) -> Tensor:
    """Give a statistic the axes of what it is of."""
    return statistic.reshape([*statistic.shape, *[1] * (x.dim() - statistic.dim())])


def rms_norm(node: Node, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the root of the mean square over the last axes; return its inverse as well."""
    axis, epsilon = shifted(node.get("axis", -1), x.dim()), node.get("epsilon", _EPSILON)
    wide = widened(x)
    inverse = torch.rsqrt(wide.square().mean(list(range(axis, x.dim())), keepdim=True) + epsilon)
    return (wide * inverse * widened(scale)).to(x.dtype), inverse


def rms_norm_gradient(
    node: Node, gradient: Tensor, x: Tensor, scale: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and scale."""
    axis = shifted(node.get("axis", -1), x.dim())
    over, before = list(range(axis, x.dim())), list(range(axis))
    dy, normal = widened(gradient), widened(x) * _kept(inverse, x)
    part = dy * widened(scale)
    data = (part - normal * (part * normal).mean(over, keepdim=True)) * _kept(inverse, x)
    return data.to(x.dtype), (dy * normal).sum(before).to(scale.dtype)


def skip_layer_norm(
    node: Node,
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Add a residual and normalize the sum; return mean, inverse deviation and the sum as well."""
    total = _summed(x, skip, bias)
    results = normalized_layer(total, [x.dim() - 1], scale, shift, node.get("epsilon", 1e-12))
    return *results, total


def skip_rms_norm(
    node: Node, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Add a residual and divide the sum by its root mean square; return the sum as well."""
    total = _summed(x, skip, bias)
    result, inverse = rms_norm(node, total, scale)
    return result, None, inverse, total


def _summed(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    wide = widened(x) + widened(skip)
    return (wide if bias is None else wide + widened(bias)).to(x.dtype)


def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalize every channel of every image."""
    wide, rank = widened(x), x.dim()
    var, mean = torch.var_mean(wide, list(range(2, rank)), correction=0, keepdim=True)
    normal = (wide - mean) * torch.rsqrt(var + node.get("epsilon", _EPSILON))
    return affine(normal, by_channel(scale, rank), by_channel(bias, rank)).to(x.dtype)


def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalize groups of channels."""
    groups, rank = node.get("num_groups"), x.dim()
    wide = widened(x).reshape(x.shape[0], groups, -1)
    var, mean = torch.var_mean(wide, [2], correction=0, keepdim=True)
    normal = ((wide - mean) * torch.rsqrt(var + node.get("epsilon", _EPSILON))).reshape(x.shape)
    if node.version < _SCALES_CHANNELS:
        size = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(size), bias.repeat_interleave(size)
    return affine(normal, by_channel(scale, rank), by_channel(bias, rank)).to(x.dtype)


def lp_normalization(node: Node, x: Tensor) -> Tensor:
    """Divide by the norm along an axis; where that is 0, the result is 0."""
    axis, wide = node.get("axis", -1), widened(x)
    length = wide.abs().sum(axis, keepdim=True) if node.get("p", 2) == 1 else _euclidean(wide, axis)
    return torch.where(length == 0, torch.zeros_like(wide), wide / length).to(x.dtype)


def _euclidean(x: Tensor, axis: int) -> Tensor:
    return x.square().sum(axis, keepdim=True).sqrt()


def mean_variance(node: Node, x: Tensor) -> Tensor:
    """Normalize over axes by mean and deviation."""
    over, wide = node.get("axes", [0, 2, 3]), widened(x)
    mean = wide.mean(over, keepdim=True)
    deviation = (wide.square().mean(over, keepdim=True) - mean.square()).sqrt()
    return ((wide - mean) / (deviation + 1e-9)).to(x.dtype)


ROWS = {
    "BatchNormalization": Row(batch_norm),
    "GroupNormalization": Row(group_norm),
    "InstanceNormalization": Row(instance_norm),
    "LayerNormalization": Row(layer_norm),
    "LpNormalization": Row(lp_normalization),
    "MeanVarianceNormalization": Row(mean_variance),
    "RMSNormalization": Row(lambda node, x, scale: rms_norm(node, x, scale)[0]),
    "SimplifiedLayerNormalization": Row(rms_norm),
    "com.microsoft:BatchNormInternal": Row(batch_norm_internal),
    "com.microsoft:BatchNormalizationGrad": Row(batch_norm_gradient),
    "com.microsoft:LayerNormalizationGrad": Row(layer_norm_gradient),
    "com.microsoft:SimplifiedLayerNormalizationGrad": Row(rms_norm_gradient),
    "com.microsoft:SkipLayerNormalization": Row(skip_layer_norm),
    "com.microsoft:SkipSimplifiedLayerNormalization": Row(skip_rms_norm),
}
