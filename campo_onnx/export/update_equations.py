"""The equations of weight updates, for any arithmetic of tensors; they compute what ``torch.optim`` computes.

What depends on the learning rate and the count of updates is a handful of numbers. All else is passes over
tensors: those of a network joined (:mod:`campo_onnx.training.updates`), or each by itself while torch traces
(:mod:`campo_onnx.export.torch.update`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from campo_onnx.export.optimizers import LAMB, SGD, Adam, AdamW, Momentum, Optimizer

T = TypeVar("T")


class Arithmetic(ABC, Generic[T]):
    """Arithmetic of tensors and numbers."""

    @abstractmethod
    def add(self, a: T, b: T) -> T:
        """Give ``a + b``."""

    @abstractmethod
    def mul(self, a: T, b: T | float) -> T:
        """Give ``a * b``."""

    @abstractmethod
    def div(self, a: T, b: T) -> T:
        """Give ``a / b``."""

    @abstractmethod
    def root(self, a: T) -> T:
        """Give the square root."""

    @abstractmethod
    def trust_ratio(self, weight: T, direction: T) -> T:
        """Length of each parameter over that of its direction; 1 where one of them is zero."""

    def held(self, number: T | float, otherwise: float) -> T | float:
        """Give a number of the update, and `otherwise` where all state is to stay what it is."""
        return number

    def sum(self, a: T, of_a: T | float | None, b: T, of_b: T | float) -> T:
        """Give ``a * of_a + b * of_b``; None for no factor."""
        first = a if of_a is None else self.mul(a, of_a)
        return first if isinstance(of_b, float) and of_b == 0 else self.add(first, self.mul(b, of_b))


def updated(
    g: Arithmetic[T],
    optimizer: Optimizer,
    weight: T,
    gradient: T,
    slots: Mapping[str, T],
    numbers: Mapping[str, T],
    scale: T | None = None,
) -> tuple[T, Mapping[str, T]]:
    """Give the new parameter and the new slots of the optimizer."""
    step, decay = numbers["step"], numbers.get("decay")
    match optimizer:
        case SGD():
            return g.sum(weight, decay, gradient, step if scale is None else g.mul(step, scale)), {}
        case Momentum() | Adam() if optimizer.weight_decay:
            gradient, scale = g.sum(gradient, scale, weight, g.held(optimizer.weight_decay, 0.0)), None
    if isinstance(optimizer, Momentum):
        mom = g.sum(gradient, scale, slots["mom"], g.held(optimizer.momentum, 1.0))
        direction = g.sum(gradient, scale, mom, optimizer.momentum) if optimizer.nesterov else mom
        return g.sum(weight, None, direction, step), {"mom": mom}
    one, two = g.held(optimizer.beta1, 1.0), g.held(optimizer.beta2, 1.0)
    rest_one, rest_two = 1 - optimizer.beta1, 1 - optimizer.beta2  # of gradients that count as zero elsewhere
    m = g.sum(slots["m"], one, gradient, rest_one if scale is None else g.mul(scale, rest_one))
    square = g.mul(gradient, gradient)
    v = g.sum(slots["v"], two, square, rest_two if scale is None else g.mul(g.mul(scale, scale), rest_two))
    direction = g.div(m, g.add(g.root(v), numbers["eps"]))
    if isinstance(optimizer, LAMB):
        direction = g.sum(direction, numbers["correction"], weight, optimizer.weight_decay)
        step = g.mul(g.trust_ratio(weight, direction), step)
    return g.sum(weight, decay, direction, step), {"m": m, "v": v}


def update_numbers(optimizer: Optimizer, lr: Any, count: Any) -> Mapping[str, Any]:
    """Compute what an update needs besides tensors; the bias corrections of Adam and its kin are in them.

    `count` is the number of this update, from 1 on. It and the learning rate are floats, or scalars in
    double, since ``1 - 0.999**count`` loses four of seven digits in single precision while the count is
    small.
    """
    match optimizer:
        case SGD(weight_decay=decay):
            return _numbers(step=-lr, decay=1 - lr * decay if decay else None)
        case Momentum():
            return _numbers(step=-lr)
    first, root = 1 - optimizer.beta1**count, (1 - optimizer.beta2**count) ** 0.5
    correction, eps = root / first, optimizer.eps * root
    match optimizer:
        case LAMB():
            return _numbers(step=-lr, correction=correction, eps=eps)
        case AdamW(weight_decay=decay) if decay:
            return _numbers(step=-lr * correction, eps=eps, decay=1 - lr * decay)
    return _numbers(step=-lr * correction, eps=eps)


def _numbers(**numbers: Any) -> Mapping[str, Any]:
    return MappingProxyType({name: number for name, number in numbers.items() if number is not None})
