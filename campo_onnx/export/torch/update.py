"""Weight updates, as ``torch.optim`` computes them for one tensor."""

from typing import NamedTuple

import torch

from campo_onnx.export.optimizers import LAMB, SGD, Adam, AdamW, Momentum, Optimizer

Slots = dict[str, torch.Tensor]


class Corrections(NamedTuple):
    """Bias corrections, by which Adam divides its moments."""

    first: torch.Tensor
    second_root: torch.Tensor


def new_count(count: torch.Tensor) -> torch.Tensor:
    """Count one more update."""
    return count + 1


def updated(
    optimizer: Optimizer,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    slots: Slots,
    lr: torch.Tensor,
    count: torch.Tensor | None,
) -> tuple[torch.Tensor, Slots]:
    """Update one parameter.

    Parameters
    ----------
    count
        The number of this update, from 1 on; for Adam and its kin.
    """
    match optimizer:
        case SGD(weight_decay=decay):
            return parameter - lr * _decayed(parameter, gradient, decay), {}
        case Momentum(momentum=kept, nesterov=nesterov, weight_decay=decay):
            gradient = _decayed(parameter, gradient, decay)
            mom = kept * slots["mom"] + gradient
            direction = gradient + kept * mom if nesterov else mom
            return parameter - lr * direction, {"mom": mom}
        case Adam(weight_decay=decay):
            gradient = _decayed(parameter, gradient, decay)
        case AdamW(weight_decay=decay):
            parameter = parameter * (1 - lr * decay)
        case LAMB():
            pass
    assert count is not None  # the step has a count exactly for these
    corrections = _corrections(optimizer, count)
    m = slots["m"] + (gradient - slots["m"]) * (1 - optimizer.beta1)
    v = optimizer.beta2 * slots["v"] + (1 - optimizer.beta2) * (gradient * gradient)
    denominator = v.sqrt() / corrections.second_root + optimizer.eps
    if isinstance(optimizer, LAMB):
        direction = _decayed(parameter, (m / corrections.first) / denominator, optimizer.weight_decay)
        return parameter - lr * _trust_ratio(parameter, direction) * direction, {"m": m, "v": v}
    return parameter - (lr / corrections.first) * (m / denominator), {"m": m, "v": v}


def _decayed(parameter: torch.Tensor, gradient: torch.Tensor, decay: float) -> torch.Tensor:
    return gradient + decay * parameter if decay else gradient


def _trust_ratio(parameter: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Length of a parameter over that of its direction; 1 where one of them is zero."""
    length, step = parameter.square().sum().sqrt(), direction.square().sum().sqrt()
    is_defined = (length > 0) & (step > 0)
    return torch.where(is_defined, length / torch.where(is_defined, step, 1.0), 1.0)


def _corrections(optimizer: Adam | AdamW | LAMB, count: torch.Tensor) -> Corrections:
    # In double: 1 - 0.999 ** t loses four of seven digits in single precision while t is small.
    exponent = count.double()
    first = 1 - torch.pow(optimizer.beta1, exponent)
    second = 1 - torch.pow(optimizer.beta2, exponent)
    return Corrections(first.float(), second.sqrt().float())
