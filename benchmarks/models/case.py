"""One model, a batch, and a loss."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration of a training.

    Parameters
    ----------
    module
        Small, with random weights; a function of JAX or a module of torch.
    inputs, targets
        The batch: of the module and of the loss.
    loss
        ``loss(module(**inputs), **targets)``, or ``loss(parameters, **inputs)`` in JAX.
    parameters
        In JAX, what is trained.
    options
        Of the export.
    """

    module: Any
    inputs: dict[str, Any]
    loss: Callable[..., Any]
    targets: dict[str, Any] = field(default_factory=dict)
    parameters: Any = None
    options: dict[str, Any] = field(default_factory=dict)
