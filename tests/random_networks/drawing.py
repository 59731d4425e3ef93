"""Draws: a random generator with what the families of layers need of it, and a module around a function."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


class Dice(random.Random):
    """A random generator."""

    def chance(self, share: float) -> bool:
        """Say yes in this share of cases."""
        return self.random() < share

    def each(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """Give several numbers from low to high."""
        return tuple(self.randint(low, high) for _ in range(count))

    def divisor(self, *numbers: int) -> int:
        """Give a number that divides all of these."""
        return self.choice([n for n in range(1, min(numbers) + 1) if all(m % n == 0 for m in numbers)])


Draw = Callable[[Dice, tuple[int, ...]], nn.Module]
"""A layer for a tensor of this shape; what does not fit raises when it is built or run."""


class Apply(nn.Module):
    """A function of a tensor as a module, with a name that says what it is."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x: Any) -> Any:
        """Call it."""
        return self.function(x)

    def extra_repr(self) -> str:
        """Say what it is."""
        return self.name


def one_of(*draws: Draw) -> Draw:
    """Draw one of several kinds."""
    return lambda dice, shape: dice.choice(draws)(dice, shape)


def functions(table: Sequence[tuple[str, Callable[..., Any]]]) -> Draw:
    """Draw one of several functions that need no parameters."""
    return lambda dice, shape: Apply(*dice.choice(table))
