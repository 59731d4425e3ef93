"""Random numbers, and dropout, which draws them.

They come from torch's generator, which ``torch.manual_seed`` seeds; seeds of nodes are not looked at, since
what a runtime makes of one is its own affair.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Node, Row, either
from campo_onnx.runtime.torch.translation.values import Array, dtype_of, is_traced

_RATIO = 0.5  # share of what dropout leaves out, where none is given


def _drawn_dtype(node: Node, default: torch.dtype) -> torch.dtype:
    number = node.get("dtype")
    return default if number is None else dtype_of(number, f"the node {node.name!r}")


def uniform(node: Node, shape: Any, dtype: torch.dtype) -> Tensor:
    """Draw evenly between two bounds."""
    low, high = node.get("low", 0.0), node.get("high", 1.0)
    return torch.rand(shape, dtype=dtype, device=node.device) * (high - low) + low


def normal(node: Node, shape: Any, dtype: torch.dtype) -> Tensor:
    """Draw from a normal distribution."""
    drawn = torch.randn(shape, dtype=dtype, device=node.device)
    return drawn * node.get("scale", 1.0) + node.get("mean", 0.0)


def bernoulli(node: Node, probability: Tensor) -> Tensor:
    """Draw ones with a probability each, zeros otherwise."""
    drawn = torch.rand_like(probability, dtype=torch.float32) < probability
    return drawn.to(_drawn_dtype(node, probability.dtype))


def multinomial(node: Node, logits: Tensor) -> Tensor:
    """Draw classes by the logarithms of their weights."""
    classes = torch.multinomial(torch.softmax(logits.float(), -1), node.get("sample_size", 1), True)
    return classes.to(_drawn_dtype(node, torch.int32))


def dropout(
    node: Node, x: Tensor, ratio: Array | Tensor | None = None, training: Array | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Leave elements out at random and scale what is left, when training; return what was kept as well."""
    share: Any = node.get("ratio", _RATIO) if ratio is None else ratio
    share = share.item() if isinstance(share, np.ndarray) else share
    if isinstance(training, Tensor) and not is_traced(training):
        training = training.cpu().numpy()
    everything = torch.ones_like(x, dtype=torch.bool)
    if training is None or (isinstance(training, np.ndarray) and not training.item()):
        return x, everything
    if isinstance(share, float) and share == 0:
        return x, everything
    mask = torch.rand_like(x, dtype=torch.float32) >= share
    if isinstance(share, Tensor):
        share = share.to(x.dtype)
    result = torch.where(mask, x / (1 - share), torch.zeros_like(x))
    if isinstance(training, np.ndarray):
        return result, mask
    return torch.where(training, result, x), mask | ~training


def bias_dropout(
    node: Node,
    x: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Array | Tensor | None = None,
    training: Array | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Drop out of a sum with a bias, and add a residual."""
    result, mask = dropout(node, x + bias, ratio, training)
    return (result if residual is None else result + residual), mask


ROWS = {
    "Bernoulli": Row(bernoulli),
    "Dropout": either(1, 2)(dropout),
    "Multinomial": Row(multinomial),
    "RandomNormal": Row(lambda node: normal(node, node.get("shape"), _drawn_dtype(node, torch.float32))),
    "RandomNormalLike": Row(lambda node, x: normal(node, x.shape, _drawn_dtype(node, x.dtype))),
    "RandomUniform": Row(lambda node: uniform(node, node.get("shape"), _drawn_dtype(node, torch.float32))),
    "RandomUniformLike": Row(lambda node, x: uniform(node, x.shape, _drawn_dtype(node, x.dtype))),
    "com.microsoft:BiasDropout": either(3, 4)(bias_dropout),
}
