"""Tensors of torch's over memory that others own, and memory of a GPU that is torch's."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.host_tensor import end_of, nbytes_of, numpy_type
from campo_onnx.runtime.torch.translation.values import DTYPES

_BF16 = numpy_type(TensorProto.BFLOAT16)
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Take an array's memory as a tensor, which keeps it alive; an array that is read-only is copied.

    NumPy has no BF16 of its own: it goes by its bits.
    """
    memory = np.require(array, requirements=("C", "W"))
    if memory.dtype == _BF16:
        return torch.from_numpy(memory.view(np.int16)).view(torch.bfloat16)
    if int(helper.np_dtype_to_tensor_dtype(memory.dtype)) not in DTYPES:
        raise UnsupportedModelError(f"torch has no tensors of type {memory.dtype}")
    return torch.from_numpy(memory)


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Give a tensor as an array: on its memory on a CPU, copied from a GPU."""
    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        bits: NDArray[Any] = host.view(torch.int16).numpy()
        return bits.view(_BF16)
    array: NDArray[Any] = host.numpy()
    return array


def onnx_type(tensor: torch.Tensor) -> int:
    """Give ``TensorProto.DataType`` of a tensor's elements."""
    return int(_NUMBERS[tensor.dtype])


def overlap(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor shares memory with another one. All of them are contiguous."""
    first = tensor.data_ptr()
    end = first + tensor.nbytes
    return any(first < other.data_ptr() + other.nbytes and other.data_ptr() < end for other in others)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuMemory:
    """A tensor of a GPU, at an address that never changes. Not measured."""

    tensor: torch.Tensor  # contiguous

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: int, processor: str) -> "GpuMemory":
        """Allocate one; see :func:`~campo_onnx.runtime.host_tensor.nbytes_of`."""
        nbytes_of(shape, dtype)
        return cls(tensor=torch.zeros(tuple(shape), dtype=DTYPES[dtype], device=processor))

    @property
    def shape(self) -> tuple[int, ...]:
        """Static dimensions."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> int:
        """``TensorProto.DataType`` of its elements."""
        return onnx_type(self.tensor)

    def read(self) -> NDArray[Any]:
        """Copy it to the host."""
        return as_array(self.tensor)

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of its shape to it."""
        value = np.asarray(array, numpy_type(self.dtype), order="C").reshape(self.shape)
        self.tensor.copy_(as_tensor(value))

    def shared(self) -> None:
        """Nothing: the memory is not the host's."""

    def slice(self, first: int, shape: Sequence[int]) -> "GpuMemory":
        """Give the tensor of a shape that begins at an element, in the same memory."""
        end_of(first, shape, math.prod(self.shape))
        part = self.tensor.view(-1)[first : first + math.prod(shape)]
        return GpuMemory(tensor=part.view(tuple(shape)))
