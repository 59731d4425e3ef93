"""From a module's ``state_dict`` to a session's state, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.export import step_naming


def first_state(state_dict: Mapping[str, torch.Tensor], model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Give every parameter and buffer that a training step reads, by the name of its input.

    Parameters
    ----------
    state_dict
        ``module.state_dict()``. What the step does not read is left out: second names of tied weights,
        buffers that nothing uses.
    model
        The exported step, or the mixed one made of it.

    Raises
    ------
    UsageError
        If an entry is missing, or has another shape or type than the input.
    """
    found: dict[str, NDArray[Any]] = {}
    problems: list[str] = []
    for value in model.graph.input:
        name = step_naming.stored(value.name)
        if name is None:
            continue
        if name not in state_dict:
            problems.append(f"it lacks {name!r}")
            continue
        array = state_dict[name].detach().cpu().numpy()
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if (array.shape, array.dtype) != (shape, dtype):
            problems.append(f"{name!r} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}")
        found[value.name] = np.array(array)
    if problems:
        more = f"; and {len(problems) - 3} more" if problems[3:] else ""
        raise UsageError(
            "the state dict does not fit the training step",
            why="; ".join(problems[:3]) + more,
            remedy="Give the state dict of the module that the step was exported from.",
        )
    return found


def state_dict_of(
    state: Mapping[str, NDArray[Any]], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Give a session's weights and buffers as a ``state_dict``.

    Parameters
    ----------
    state
        What :meth:`campo_onnx.training.session.TrainingSession.state` returns.
    like
        ``state_dict()`` of the module: says which entries there are. Tied weights get the same value
        under each of their names; an entry that the step does not read is as it is there.

    Raises
    ------
    UsageError
        If the state holds a parameter or buffer that the module does not have.
    """
    own = {name: value for key, value in state.items() if (name := step_naming.stored(key)) is not None}
    if unknown := [name for name in own if name not in like]:
        raise UsageError("the state is another module's", why=f"this one has no {', '.join(unknown[:3])}")
    names = {_address(like[name]): name for name in own}
    found = {}
    for name, tensor in like.items():
        source = name if name in own else names.get(_address(tensor))
        found[name] = tensor if source is None else torch.from_numpy(np.array(own[source]))
    return found


def _address(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Tell tied tensors: they share memory, shape and strides. One without memory is like no other."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
