"""From a module's ``state_dict`` to a session's state, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.step import naming as step_naming


def first_state(
    state_dict: Mapping[str, torch.Tensor] | torch.nn.Module, model: onnx.ModelProto
) -> dict[str, NDArray[Any]]:
    """Give every parameter and buffer that a training step reads, by the name of its input.

    `state_dict`: ``module.state_dict()``, or the module, which has buffers that are not persistent as well.
    What the step does not read is left out: second names of tied weights, buffers that nothing uses.
    """
    tensors = _tensors(state_dict)
    state: dict[str, NDArray[Any]] = {}
    problems: list[str] = []
    for value in model.graph.input:
        name = step_naming.stored(value.name)
        if name is None:
            continue
        if name not in tensors:
            problems.append(f"it lacks {name!r}")
            continue
        tensor, wanted = tensors[name].detach(), value.type.tensor_type
        shape = tuple(dim.dim_value for dim in wanted.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted.elem_type)
        there = str(tensor.dtype).removeprefix("torch.")
        if (tuple(tensor.shape), there) != (shape, dtype.name):
            problems.append(f"{name!r} is {there}{list(tensor.shape)}, not {dtype}{list(shape)}")
        elif not problems:
            state[value.name] = _array(tensor.cpu(), dtype)
    if problems:
        more = f"; and {len(problems) - 3} more" if problems[3:] else ""
        raise UsageError(
            "the state dict does not fit the training step",
            why="; ".join(problems[:3]) + more,
            remedy="Give that of the module that the step was exported from, or, for buffers that are not "
            "persistent, the module itself.",
        )
    return state


def _tensors(source: Mapping[str, torch.Tensor] | torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Give every parameter and buffer; a module's state dict lacks the buffers that are not persistent."""
    if not isinstance(source, torch.nn.Module):
        return source
    return {**dict(source.named_buffers(remove_duplicate=False)), **source.state_dict()}


def state_dict_of(
    state: Mapping[str, NDArray[Any]], like: Mapping[str, torch.Tensor] | torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Give a session's weights and buffers as a ``state_dict``.

    `state`: what :meth:`campo_onnx.training.session.TrainingSession.state` returns.
    `like`: ``state_dict()`` of the module, or the module where the step reads buffers that are not
    persistent: says which entries there are. Tied weights get the same value under each of their names; an
    entry that the step does not read is as it is there.
    """
    own = {name: value for key, value in state.items() if (name := step_naming.stored(key)) is not None}
    tensors = _tensors(like)
    if unknown := [name for name in own if name not in tensors]:
        raise UsageError("the state is another module's", why=f"this one has no {', '.join(unknown[:3])}")
    names = {_address(tensors[name]): name for name in own}
    result = {}
    for name, tensor in (like.state_dict() if isinstance(like, torch.nn.Module) else like).items():
        is_tensor = isinstance(tensor, torch.Tensor)  # a module may keep other things there
        source = name if name in own else names.get(_address(tensor)) if is_tensor else None
        result[name] = tensor if source is None else _tensor(own[source])
    return result


def _array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Copy a tensor; torch gives NumPy no bfloat16, but its bits."""
    is_bfloat16 = tensor.dtype == torch.bfloat16
    return np.array(tensor.view(torch.int16).numpy().view(dtype) if is_bfloat16 else tensor.numpy())


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Copy an array; torch takes no bfloat16 of NumPy, but its bits."""
    copied = np.array(array)
    if copied.dtype.name == "bfloat16":
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)


def _address(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Tell tied tensors: they share memory, shape and strides. One without memory is like no other."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
