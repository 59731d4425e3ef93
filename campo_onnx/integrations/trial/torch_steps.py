"""Torch's own steps: eager, under autocast, compiled; each loss and gradients, without the update."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from campo_onnx.errors import UsageError, is_foreign, message_of
from campo_onnx.integrations.trial.result import AUTOCAST, COMPILED, COMPILED_AUTOCAST, EAGER
from campo_onnx.step import naming as step_naming

Gradients = Mapping[str, NDArray[np.float64]]
"""By the name that an exported step gives each."""

_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchStep:
    """A step as torch runs it.

    `loss`: ``loss(module(*inputs), *targets)``; a scalar, or a pair of it and something else.
    `inputs` and `targets`: a batch, as :func:`campo_onnx.export.torch.export_training_step` takes it.
    """

    module: torch.nn.Module  # a copy of the user's, which steps may change
    loss: Callable[..., Any]
    inputs: Any
    targets: Any

    @classmethod
    def of(cls, module: Any, loss: Any, batch: Any) -> "TorchStep":
        """Take a user's step."""
        if not isinstance(module, torch.nn.Module):
            raise UsageError(
                f"the module is a value of type {type(module).__name__}",
                remedy="Give a torch.nn.Module, its loss and a batch.",
            )
        if not callable(loss):
            raise UsageError(
                f"the loss is a value of type {type(loss).__name__}",
                remedy="Give a function of the module's output and the targets.",
            )
        inputs, targets = _inputs_and_targets(batch)
        try:
            own = copy.deepcopy(module)
        except Exception as error:  # whatever torch, or the user's module, raises
            if is_foreign(error):
                raise
            raise UsageError(
                "the module cannot be copied",
                why=f"{type(error).__name__}: {message_of(error)}",
                remedy="Let copy.deepcopy(module) work; a tensor that was computed is no part of a module.",
            ) from error
        return cls(module=own, loss=loss, inputs=inputs, targets=targets)

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch: the leading dimension that its tensors share; None where they share none."""
        leaves = tree_leaves((self.inputs, self.targets))
        sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def is_on_gpu(self) -> bool:
        """Whether its weights are on a CUDA device."""
        return any(parameter.is_cuda for parameter in self.module.parameters())

    def run(self, forward: Callable[..., Any], *, autocasts: bool) -> float:
        """Run forward and backward once and wait for their end; return the loss.

        UsageError says that they fail.
        """
        try:
            return self._loss(forward, autocasts=autocasts)
        except Exception as error:  # whatever torch, or the user's module, raises
            if is_foreign(error):
                raise
            raise UsageError(
                "the step does not run in torch", why=f"{type(error).__name__}: {message_of(error)}"
            ) from error

    def _loss(self, forward: Callable[..., Any], *, autocasts: bool) -> float:
        self.module.zero_grad(set_to_none=True)
        device = "cuda" if self.is_on_gpu else "cpu"
        with torch.autocast(device, _low(device), enabled=autocasts):
            output = forward(*_positional(self.inputs), **_named(self.inputs))
            result = self.loss(output, *_positional(self.targets), **_named(self.targets))
        value = result[0] if isinstance(result, tuple) else result
        value.backward()
        return float(value.detach())  # which waits for a GPU

    def gradients(self) -> Gradients:
        """Copy the gradients of the last step."""
        return {
            step_naming.gradient(name): parameter.grad.detach().cpu().double().numpy()
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }


def torch_steps(step: TorchStep, *, compiles: bool) -> Mapping[str, Callable[[], float]]:
    """Give torch's steps by name; each runs once and returns the loss."""
    steps = {
        EAGER: partial(step.run, step.module, autocasts=False),
        AUTOCAST: partial(step.run, step.module, autocasts=True),
    }
    if compiles:
        compiled = torch.compile(step.module)
        steps[COMPILED] = partial(step.run, compiled, autocasts=False)
        steps[COMPILED_AUTOCAST] = partial(step.run, compiled, autocasts=True)
    return steps


@contextmanager
def threads_of_torch(threads: int) -> Iterator[None]:
    """Let torch use a number of threads meanwhile; 0 leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _low(device: str) -> torch.dtype:
    """The format that needs no loss scale, where the device has it."""
    return torch.bfloat16 if device == "cpu" or torch.cuda.is_bf16_supported() else torch.float16


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """Split a batch: a pair is inputs and targets, a mapping or a tensor inputs alone."""
    if isinstance(batch, torch.Tensor | Mapping):
        return batch, ()
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) == _PAIR:
        return batch[0], batch[1]
    many = f"{len(batch)} parts" if isinstance(batch, Sequence) else f"the type {type(batch).__name__}"
    raise UsageError(
        f"the batch has {many}",
        remedy="Give a pair of inputs and targets, each a tensor, a tuple of arguments or a mapping by name; "
        "or a tensor or a mapping, for a loss that takes the module's output alone.",
    )


def _positional(arguments: Any) -> Sequence[Any]:
    if isinstance(arguments, torch.Tensor):
        return (arguments,)
    return () if isinstance(arguments, Mapping) else tuple(arguments)


def _named(arguments: Any) -> Mapping[str, Any]:
    return arguments if isinstance(arguments, Mapping) else {}
