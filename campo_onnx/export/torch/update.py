"""Weight updates of single tensors, as torch traces them."""

from collections.abc import Mapping

import torch

from campo_onnx.export import update_equations
from campo_onnx.export.optimizers import Optimizer


def updated(
    optimizer: Optimizer,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    slots: Mapping[str, torch.Tensor],
    lr: torch.Tensor,
    count: torch.Tensor | None,
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Update one parameter.

    `count` is the number of this update, from 1 on; None for an optimizer that does not ask for it.
    """
    numbers = update_equations.update_numbers(optimizer, lr, lr if count is None else count.double())
    singles = {name: number.float() for name, number in numbers.items()}
    return update_equations.updated(_Traced(), optimizer, parameter, gradient, slots, singles)


class _Traced(update_equations.Arithmetic[torch.Tensor]):
    """Arithmetic of torch's tensors."""

    add, mul, div = staticmethod(torch.add), staticmethod(torch.mul), staticmethod(torch.div)
    root = staticmethod(torch.sqrt)

    def trust_ratio(self, weight: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        length, step = weight.square().sum().sqrt(), direction.square().sum().sqrt()
        is_defined = (length > 0) & (step > 0)
        return torch.where(is_defined, length / torch.where(is_defined, step, 1.0), 1.0)
