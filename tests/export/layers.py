"""A layer that does one thing more than it should, and a batch for it."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

X = torch.linspace(-1, 2, 12).reshape(4, 3)


class Layer(nn.Module):
    """A linear layer, and something else that forward does with its result."""

    def __init__(self, also: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.also = nn.Linear(3, 3), also
        self.register_buffer("mean", torch.zeros(3))
        self.plain, self.seen, self.count = torch.ones(3), [], 1
        self.dice = random.Random(0)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        output = self.also(self, y)
        return y if output is None else output
