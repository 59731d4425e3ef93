"""Code of forward around a layer: in-place operations, parts without a gradient, buffers, checkpoints."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.random_networks.drawing import Dice


class _Doubled(torch.autograd.Function):
    """The identity with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0.1


class Around(nn.Module):
    """A layer, and what forward does around it."""

    def __init__(self, layer: nn.Module, how: str) -> None:
        super().__init__()
        self.layer, self.how = layer, how
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("passing", torch.full((3,), 0.5), persistent=False)
        self.scale = nn.Parameter(torch.full((), 0.8))

    def forward(self, x: Any) -> Any:
        """Run it."""
        return _WAYS[self.how](self, x)

    def extra_repr(self) -> str:
        """Say how."""
        return self.how


def _residual(self: Any, x: Any) -> Any:
    y = self.layer(x)
    return x + y * self.scale if y.shape == x.shape else y * self.scale


def _counted(self: Any, x: Any) -> Any:
    self.count += 1
    y = self.layer(x)
    self.mean.mul_(0.9).add_(y.detach().mean(), alpha=0.1)
    return y * (1 + self.mean) + self.count


def _assigned(self: Any, x: Any) -> Any:
    y = self.layer(x)
    self.mean = 0.5 * self.mean + y.detach().mean()
    with torch.no_grad():
        self.passing[1:].copy_(torch.stack([y.min(), y.max()]))
    return y * self.passing.sum()


def _in_place(self: Any, x: Any) -> Any:
    y = self.layer(x * 1)
    y = y * self.scale
    y.add_(0.3).mul_(1.5)
    y[:, 0] = y[:, -1] * 2
    y[..., :1].relu_()
    return y


def _view(self: Any, x: Any) -> Any:
    y = self.layer(x).clone()
    flat = y.view(-1)
    flat[: flat.numel() // 2] += 0.5
    y.transpose(0, 1)[0].mul_(self.scale)
    flat.view(y.shape[0], -1)[:, 0].fill_(0.25)
    return y


def _masked(self: Any, x: Any) -> Any:
    y = self.layer(x) + 0
    y.masked_fill_(y > 1.5, 0.2)
    y[y < -1.5] = -0.2
    return y


def _without_gradient(self: Any, x: Any) -> Any:
    with torch.no_grad():
        factor = self.layer(x).abs().mean() + 0.5
    y = self.layer(x)
    return y / factor + (y * self.scale).detach()


def _own_function(self: Any, x: Any) -> Any:
    return _Doubled.apply(self.layer(_Doubled.apply(x)) * self.scale)


def _checkpointed(self: Any, x: Any) -> Any:
    return checkpoint(lambda z: self.layer(z).tanh() * self.scale, x, use_reentrant=False)


def _twice(self: Any, x: Any) -> Any:
    y = self.layer(x)
    return self.layer(y) + y if y.shape == x.shape else y


def _gradient_inside(self: Any, x: Any) -> Any:
    y = self.layer(x)
    (slope,) = torch.autograd.grad(y.square().sum(), y, create_graph=True)
    return y + 0.1 * slope * self.scale


def _hooked(self: Any, x: Any) -> Any:
    y = self.layer(x) * self.scale
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return y


def _clipped(self: Any, x: Any) -> Any:
    y = self.layer(x)
    return y / y.detach().norm().clamp(min=1.0) * self.scale


_WAYS: dict[str, Callable[..., Any]] = {
    "residual": _residual, "counted": _counted, "assigned": _assigned, "in place": _in_place, "view": _view,
    "masked": _masked, "without gradient": _without_gradient, "own function": _own_function,
    "checkpointed": _checkpointed, "twice": _twice, "gradient inside": _gradient_inside, "hooked": _hooked,
    "clipped": _clipped,
}  # fmt: skip


def around(dice: Dice, layer: nn.Module) -> nn.Module:
    """Put something around a layer."""
    return Around(layer, dice.choice([*_WAYS, "residual"]))
