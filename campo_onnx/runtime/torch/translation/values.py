"""Values of a translated graph: torch tensors, and arrays that are known while it is traced."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.constants import whole

Array = NDArray[Any]

DTYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        TensorProto.FLOAT: torch.float32,
        TensorProto.DOUBLE: torch.float64,
        TensorProto.FLOAT16: torch.float16,
        TensorProto.BFLOAT16: torch.bfloat16,
        TensorProto.INT8: torch.int8,
        TensorProto.INT16: torch.int16,
        TensorProto.INT32: torch.int32,
        TensorProto.INT64: torch.int64,
        TensorProto.UINT8: torch.uint8,
        TensorProto.UINT16: torch.uint16,
        TensorProto.UINT32: torch.uint32,
        TensorProto.UINT64: torch.uint64,
        TensorProto.BOOL: torch.bool,
        TensorProto.COMPLEX64: torch.complex64,
        TensorProto.COMPLEX128: torch.complex128,
    }
)
KNOWN_ELEMENTS = 1024  # the most elements of a constant that is kept as an array beside its tensor
_BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
_SYMBOLIC = np.dtype(object)  # of arrays that hold sizes with names; their type is int64


def dtype_of(number: int, what: str) -> torch.dtype:
    """Return torch's type for ONNX's; `what` has it, for the message."""
    dtype = DTYPES.get(number)
    if dtype is None:
        raise UnsupportedModelError(
            f"torch does not run {what}",
            why=f"it is of the type {TensorProto.DataType.Name(number)}, which is not translated",
            remedy="Run the graph on ONNX Runtime (--runtime onnxruntime).",
        )
    return dtype


def array_of_constant(tensor: TensorProto, folder: Path | None) -> Array:
    """Read a constant."""
    dtype_of(tensor.data_type, f"the constant {tensor.name!r}")
    return whole(tensor, folder)


def to_tensor(value: Array, device: torch.device) -> torch.Tensor:
    """Make the tensor of an array that is known while tracing."""
    if value.dtype == _SYMBOLIC:
        flat = [torch.scalar_tensor(size, dtype=torch.int64, device=device) for size in value.reshape(-1)]
        return torch.stack(flat).reshape(value.shape)
    array = np.array(value, order="C")  # torch takes no array that cannot be written to
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def ints(value: Array) -> list[int]:
    """List the integers of a known array: a shape, axes, pads."""
    return value.reshape(-1).tolist()


def is_known_size(sizes: Sequence[Any]) -> bool:
    """Whether a tensor of these sizes is small enough to be kept as an array."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= KNOWN_ELEMENTS


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor cannot be looked at, since a graph is being recorded."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return isinstance(tensor, FakeTensor) or get_proxy_mode() is not None


def sizes_array(sizes: Sequence[Any]) -> Array:
    """Make the array of a shape; sizes with names are objects in it."""
    are_numbers = all(isinstance(size, int) for size in sizes)
    return np.array(list(sizes), np.int64 if are_numbers else _SYMBOLIC)
