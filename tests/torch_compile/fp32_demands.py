"""Modules whose code asks for FP32 in a part: numbers there are beyond what FP16 holds."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from torch import nn

WIDTH = 512


def batch() -> Any:
    return 40 * torch.randn(2, 256, WIDTH)


class _Between(nn.Module):
    """A part between two layers that compute in low precision."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.last(self.part(self.first(x)))

    def part(self, h: Any) -> Any:
        raise NotImplementedError


def mixed(h: Any) -> Any:
    gram = h @ h.mT
    return torch.softmax(gram / gram.detach().abs().amax(), -1) @ h


class Region(_Between):
    def part(self, h: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return mixed(h.float())


class Decorated(_Between):
    def part(self, h: Any) -> Any:
        return torch.autocast("cpu", enabled=False)(mixed)(h.float())


class Nested(_Between):
    def part(self, h: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            with torch.autocast("cpu", dtype=torch.float16):
                h = self.last(h)
            return mixed(h.float())


class _Gram(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, h: Any) -> Any:
        ctx.save_for_backward(h)
        return h @ h.mT / 1e4

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: Any) -> Any:
        (h,) = ctx.saved_tensors
        return gradient @ (h / 1e4) + gradient.mT @ (h / 1e4)


class Function(_Between):
    def part(self, h: Any) -> Any:
        return (_Gram.apply(h) / 1e3).softmax(-1) @ h


class Cast(_Between):
    def part(self, h: Any) -> Any:
        wide = h.float()
        power = wide * wide * wide
        return power / power.detach().abs().amax()


class Argument(_Between):
    def part(self, h: Any) -> Any:
        wide = h.to(dtype=torch.float32)
        squares = (wide * wide * wide.abs()).sum(-1, keepdim=True, dtype=torch.float32)
        return wide / (squares + 1)


MODULES = [Region, Decorated, Nested, Function, Cast, Argument]
