"""Weight updates of single tensors, as torch traces them."""

from collections.abc import Mapping

import torch

from campo_onnx.export import update_equations
from campo_onnx.export.optimizers import LAMB, Optimizer


class Updates:
    """The update of every parameter of a step.

    Where a gradient is not finite, gradients count as zero and the numbers of the update are such that
    weights and slots stay what they are: one choice for each gradient, where each new tensor would take one.

    `count`: the number of this update, from 1 on; None for an optimizer that does not ask for it.
    `finite`: whether every gradient is finite; None where nobody asks.
    """

    def __init__(
        self, optimizer: Optimizer, lr: torch.Tensor, count: torch.Tensor | None, finite: torch.Tensor | None
    ) -> None:
        self._optimizer, self._finite = optimizer, finite
        self._traced = _Traced(finite)
        numbers = update_equations.update_numbers(optimizer, lr, lr if count is None else count.double())
        held = {"step": 0.0, "decay": 1.0}
        self._numbers = {
            name: self._traced.held(number.float(), held[name]) if name in held else number.float()
            for name, number in numbers.items()
        }
        # Zero times these directions may be NaN: without an epsilon 0 / 0, a ratio of lengths that overflow.
        self._is_chosen = isinstance(optimizer, LAMB) or getattr(optimizer, "eps", 1.0) == 0.0

    def __call__(
        self, parameter: torch.Tensor, gradient: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Give the new parameter and its new slots."""
        if self._finite is not None:
            gradient = torch.where(self._finite, gradient, 0.0)
        new, new_slots = update_equations.updated(
            self._traced, self._optimizer, parameter, gradient, slots, self._numbers
        )
        if self._finite is not None and self._is_chosen:
            new = torch.where(self._finite, new, parameter)
        return new, new_slots


class _Traced(update_equations.Arithmetic[torch.Tensor]):
    """Arithmetic of torch's tensors."""

    add, mul, div = staticmethod(torch.add), staticmethod(torch.mul), staticmethod(torch.div)
    root = staticmethod(torch.sqrt)

    def __init__(self, finite: torch.Tensor | None) -> None:
        self._finite = finite

    def held(self, number: torch.Tensor | float, otherwise: float) -> torch.Tensor | float:
        return number if self._finite is None else torch.where(self._finite, number, otherwise)

    def trust_ratio(self, weight: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        length, step = weight.square().sum().sqrt(), direction.square().sum().sqrt()
        is_defined = (length > 0) & (step > 0)
        return torch.where(is_defined, length / torch.where(is_defined, step, 1.0), 1.0)
