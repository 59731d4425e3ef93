"""Cases trained in torch itself, and exported from it."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import torch
from torch.utils._pytree import tree_map

from benchmarks.models.case import Case
from benchmarks.models.exactness import MOMENTUM, RATE, STEPS, Arrays, Framework, Trained
from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.arguments import arguments
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.step import naming as step_naming


def _in_torch(case: Case, is_exact: bool) -> Trained:
    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if is_float and is_exact else value

    module = copy.deepcopy(case.module)
    module = module.double() if is_exact else module
    inputs, targets = tree_map(cast, (case.inputs, case.targets))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if is_exact else before)  # of what forward makes itself
    try:
        return trained(module, lambda: case.loss(module(**inputs), **targets))
    finally:
        torch.set_default_dtype(before)


def trained(module: torch.nn.Module, loss_of: Callable[[], torch.Tensor]) -> Trained:
    """Train a module with gradient descent and momentum, from the weights that it has."""
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=MOMENTUM)
    first: tuple[float, Arrays] | None = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        if first is None:
            gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            first = float(loss), {n: gradient.detach().numpy().copy() for n, gradient in gradients.items()}
        optimizer.step()
    assert first is not None
    weights = {n: p.detach().numpy().copy() for n, p in module.named_parameters() if n in first[1]}
    return Trained(loss=first[0], gradients=first[1], weights=weights)


def _from_torch(case: Case) -> onnx.ModelProto:
    return export_training_step(case.module, case.loss, case.inputs, case.targets, **case.options)


def _feeds_of_torch(case: Case, model: onnx.ModelProto) -> Arrays:
    forward, loss = case.module.forward, case.loss
    batch = arguments(case.inputs, forward, skip=0, kind="input", name_of=step_naming.batch_input).tensors
    batch |= arguments(case.targets, loss, skip=1, kind="target", name_of=step_naming.target).tensors
    read = {value.name for value in model.graph.input}
    own = {n: t.detach().numpy().copy() for n, t in batch.items() if n in read}
    return first_state(case.module, model) | own


def _in_torch_without_onednn(case: Case) -> Trained:
    with torch.backends.mkldnn.flags(enabled=False):
        return _in_torch(case, False)


def _in_torch_channels_last(case: Case) -> Trained:
    def moved(value: Any) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.to(memory_format=torch.channels_last) if is_image else value

    module = copy.deepcopy(case.module).to(memory_format=torch.channels_last)
    inputs = {name: moved(value) for name, value in case.inputs.items()}
    return _in_torch(replace(case, module=module, inputs=inputs), False)


def _for_cpu(case: Case) -> Case:
    return replace(case, options={**case.options, "target": "cpu"})


TORCH = Framework(
    export=_from_torch,
    feeds=_feeds_of_torch,
    train=_in_torch,
    others={
        "torch without oneDNN": _in_torch_without_onednn,
        "torch, channels last": _in_torch_channels_last,
    },
    for_cpu=_for_cpu,
)
