"""Losses over classes, which lie on the second axis, and their gradients."""

from typing import Any

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Node, Row, static
from campo_onnx.runtime.torch.translation.reductions import widened
from campo_onnx.runtime.torch.translation.values import Array, dtype_of, ints


def _ignored(node: Node, index: Array | None = None) -> int | None:
    """Return the label that does not count, if there is one."""
    return node.get("ignore_index") if index is None else ints(index)[0]


def _weights(labels: Tensor, weight: Tensor | None, ignored: int | None, dtype: torch.dtype) -> Tensor:
    """Return what each label counts."""
    if weight is None:
        counts = torch.ones_like(labels, dtype=dtype)
    else:
        inside = labels.clamp(0, weight.shape[0] - 1)
        counts = widened(weight).to(dtype)[inside]
    return counts if ignored is None else torch.where(labels == ignored, torch.zeros_like(counts), counts)


def _picked(log_prob: Tensor, labels: Tensor) -> Tensor:
    """Take the element of each label."""
    inside = labels.clamp(0, log_prob.shape[1] - 1)
    return torch.gather(log_prob, 1, inside.unsqueeze(1)).squeeze(1)


def _loss(node: Node, log_prob: Tensor, labels: Tensor, weight: Tensor | None, ignored: int | None) -> Tensor:
    labels, how = labels.to(torch.int64), node.get("reduction", "mean")
    counts = _weights(labels, weight, ignored, log_prob.dtype)
    losses = -_picked(log_prob, labels) * counts
    losses = torch.where(counts == 0, torch.zeros_like(losses), losses)
    if how == "none":
        return losses
    return losses.sum() / counts.sum() if how == "mean" else losses.sum()


def _result_dtype(node: Node, x: Tensor) -> torch.dtype:
    number = node.get("output_type", 0)
    return dtype_of(number, f"the node {node.name!r}") if number else x.dtype


def cross_entropy(
    node: Node, scores: Tensor, labels: Tensor, weight: Tensor | None = None, index: Array | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss and the logarithms of probabilities."""
    log_prob = torch.log_softmax(widened(scores), 1)
    loss = _loss(node, log_prob, labels, weight, _ignored(node, index))
    dtype = _result_dtype(node, scores)
    return loss.to(dtype), log_prob.to(dtype)


def negative_log_likelihood(
    node: Node, log_prob: Tensor, labels: Tensor, weight: Tensor | None = None, index: Array | None = None
) -> Tensor:
    """Return the loss of logarithms of probabilities."""
    return _loss(node, widened(log_prob), labels, weight, _ignored(node, index)).to(log_prob.dtype)


def cross_entropy_gradient(
    node: Node,
    gradient: Tensor,
    log_prob: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    index: Array | None = None,
    summand: Tensor | None = None,
) -> Tensor:
    """Return the gradient of scores."""
    labels, wide = labels.to(torch.int64), widened(log_prob)
    counts = _weights(labels, weight, _ignored(node, index), wide.dtype)
    factor: Any = widened(gradient)
    if node.get("reduction", "mean") == "mean":
        factor = factor / counts.sum()
    classes = torch.arange(wide.shape[1], device=wide.device).reshape(1, -1, *[1] * (wide.dim() - 2))
    hits = (labels.unsqueeze(1) == classes).to(wide.dtype)
    result = (wide.exp() - hits) * (factor * counts).unsqueeze(1)
    result = result if summand is None else result + widened(summand).reshape(result.shape)
    return result.to(_result_dtype(node, gradient))


def of_last_axis(
    node: Node, scores: Tensor, labels: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return loss and logarithms of probabilities where classes lie on the last axis."""
    flat = scores.reshape(-1, scores.shape[-1])
    counts = None if weight is None else weight.reshape(-1)
    log_prob = torch.log_softmax(widened(flat), 1)
    losses = -_picked(log_prob, labels.reshape(-1).to(torch.int64))
    total = losses if counts is None else losses * widened(counts)
    loss = total.sum()
    if node.get("reduction", "mean") == "mean":
        loss = loss / (losses.numel() if counts is None else widened(counts).sum())
    return loss.to(scores.dtype), log_prob.reshape(scores.shape).to(scores.dtype)


def of_last_axis_gradient(
    node: Node, gradient: Tensor, log_prob: Tensor, labels: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Return the gradient of scores where classes lie on the last axis."""
    wide = widened(log_prob).reshape(-1, log_prob.shape[-1])
    flat = labels.reshape(-1).to(torch.int64)
    counts = torch.ones_like(wide[:, 0]) if weight is None else widened(weight).reshape(-1)
    factor = widened(gradient)
    if node.get("reduction", "mean") == "mean":
        factor = factor / counts.sum()
    hits = (flat.unsqueeze(1) == torch.arange(wide.shape[1], device=wide.device)).to(wide.dtype)
    result = (wide.exp() - hits) * (factor * counts).unsqueeze(1)
    return result.reshape(log_prob.shape).to(log_prob.dtype)


ROWS = {
    "NegativeLogLikelihoodLoss": Row(negative_log_likelihood),
    "SoftmaxCrossEntropyLoss": Row(cross_entropy),
    "SparseSoftmaxCrossEntropy": Row(of_last_axis),
    "SparseSoftmaxCrossEntropyGrad": Row(of_last_axis_gradient),
    "com.microsoft:NegativeLogLikelihoodLossInternal": static(3)(negative_log_likelihood),
    "com.microsoft:NegativeLogLikelihoodLossInternal2": static(3)(negative_log_likelihood),
    "com.microsoft:SoftmaxCrossEntropyLossGrad": Row(cross_entropy_gradient),
    "com.microsoft:SoftmaxCrossEntropyLossInternal": static(3)(cross_entropy),
    "com.microsoft:SoftmaxCrossEntropyLossInternalGrad": static(4)(cross_entropy_gradient),
}
