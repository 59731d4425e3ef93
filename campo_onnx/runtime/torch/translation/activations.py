"""Activations, softmaxes, and gradients of activations."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import Compute, Node, Row, plain

_COERCING_OPSET = 12  # the last one in which softmaxes take several axes
_EXACT_BEYOND = 40.0  # here softplus is its argument, in FP64 too


def softmax(function: Compute) -> Row:
    """Make the row of a softmax; up to opset 12 it takes all axes from one on as one."""

    def compute(node: Node, x: Tensor) -> Tensor:
        if node.version > _COERCING_OPSET:
            return function(x, node.get("axis", -1))
        axis = shifted(node.get("axis", 1), x.dim())
        return function(x.reshape(math.prod(x.shape[:axis]), -1), -1).reshape(x.shape)

    return Row(compute)


def hardmax(x: Tensor, axis: int) -> Tensor:
    """Return 1 at the first largest element, 0 elsewhere."""
    place = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, place, 1)


def elu(node: Node, x: Tensor) -> Tensor:
    """Compute x, or for negative x alpha (exp x - 1)."""
    return F.elu(x, node.get("alpha", 1.0))


def selu(node: Node, x: Tensor) -> Tensor:
    """Compute a scaled ELU."""
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Multiply what is negative with a slope."""
    return torch.where(x < 0, x * slope, x)


def shrink(node: Node, x: Tensor) -> Tensor:
    """Move elements towards 0, and make those near it 0."""
    bound, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    zero = torch.zeros_like(x)
    return torch.where(
        x < -bound, (x + bias).to(x.dtype), torch.where(x > bound, (x - bias).to(x.dtype), zero)
    )


def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """Compute a line between 0 and 1."""
    return (x * node.get("alpha", 0.2) + node.get("beta", 0.5)).clamp(0, 1)


def gelu(node: Node, x: Tensor) -> Tensor:
    """Compute GELU, exactly or by a tanh."""
    return F.gelu(x, approximate=node.get("approximate", "none"))


def swish(node: Node, x: Tensor) -> Tensor:
    """Compute x sigmoid(alpha x)."""
    return x * torch.sigmoid(node.get("alpha", 1.0) * x)


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + exp x)."""
    return F.softplus(x, threshold=_EXACT_BEYOND)


ACTIVATIONS: Mapping[str, Callable[[Node, Tensor], Tensor]] = MappingProxyType(
    {
        "Elu": elu,
        "HardSigmoid": hard_sigmoid,
        "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
        "Relu": lambda node, x: torch.relu(x),
        "Sigmoid": lambda node, x: torch.sigmoid(x),
        "Softplus": lambda node, x: softplus(x),
        "Softsign": lambda node, x: F.softsign(x),
        "Tanh": lambda node, x: torch.tanh(x),
        "ThresholdedRelu": lambda node, x: torch.where(x > node.get("alpha", 1.0), x, torch.zeros_like(x)),
    }
)

ROWS = {
    **{op_type: Row(function) for op_type, function in ACTIVATIONS.items()},
    "Celu": Row(lambda node, x: F.celu(x, node.get("alpha", 1.0))),
    "Gelu": Row(gelu),
    "HardSwish": Row(lambda node, x: x * (x / 6 + 0.5).clamp(0, 1)),
    "Hardmax": softmax(hardmax),
    "LogSoftmax": softmax(torch.log_softmax),
    "Mish": plain(F.mish),
    "PRelu": Row(prelu),
    "Selu": Row(selu),
    "Shrink": Row(shrink),
    "Softmax": softmax(torch.softmax),
    "Swish": Row(swish),
}
