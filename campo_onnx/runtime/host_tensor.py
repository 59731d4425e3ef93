"""Memory of tensors on the host, which runtimes read and write in place; several may share it, in slices."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.machine import CPU

_ALIGNMENT_BYTES = 256
"""That of CUDA's own allocator, and more than any CPU kernel asks for."""

_MOST_BYTES = 1 << 48
"""More than any processor addresses."""

_FIXED_SIZE = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A tensor of a CPU, at an address that never changes, so that bindings stay valid."""

    array: NDArray[Any]  # the memory, C-contiguous
    processor: ClassVar[str] = CPU

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: int) -> "HostTensor":
        """Allocate one; see :func:`nbytes_of`."""
        nbytes = nbytes_of(shape, dtype)
        try:
            memory = np.zeros(nbytes + _ALIGNMENT_BYTES, np.uint8)
        except MemoryError:
            raise _too_large(shape) from None
        first = -memory.ctypes.data % _ALIGNMENT_BYTES
        return cls(memory[first : first + nbytes].view(numpy_type(dtype)).reshape(tuple(shape)))

    @classmethod
    def sharing(cls, array: NDArray[Any]) -> "HostTensor":
        """Take an array as a tensor."""
        return cls(np.require(array, requirements="C"))

    @property
    def shape(self) -> tuple[int, ...]:
        """Static dimensions."""
        return self.array.shape

    @property
    def dtype(self) -> int:
        """``TensorProto.DataType`` of its elements."""
        return int(helper.np_dtype_to_tensor_dtype(self.array.dtype))

    @property
    def address(self) -> int:
        """Its address; never 0."""
        return int(self.array.ctypes.data)

    def read(self) -> NDArray[Any]:
        """Copy it."""
        return self.array.copy()

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of its shape and type to it."""
        if array.shape != self.shape or array.dtype != self.array.dtype:
            raise UnsupportedModelError(
                "an array does not fit its tensor",
                why=f"it is {array.dtype}{list(array.shape)}, and the tensor "
                f"{self.array.dtype}{list(self.shape)}",
            )
        self.array[...] = array

    def shared(self) -> NDArray[Any]:
        """Give the memory itself."""
        return self.array

    def slice(self, first: int, shape: Sequence[int]) -> "HostTensor":
        """Give the tensor of a shape that begins at an element, in the same memory."""
        flat = self.array.reshape(-1)
        return HostTensor(flat[first : end_of(first, shape, flat.size)].reshape(tuple(shape)))


def end_of(first: int, shape: Sequence[int], elements: int) -> int:
    """Give the end of a slice of a tensor of so many elements, in elements."""
    end = first + math.prod(shape)
    if not 0 <= first <= end <= elements:
        raise ValueError(f"elements {first} to {end} of a tensor of {elements}")
    return end


def nbytes_of(shape: Sequence[int], dtype: int) -> int:
    """Give the size of a tensor in memory.

    UnsupportedModelError says that elements have no fixed size, or that no memory holds them.
    """
    if not has_fixed_size(dtype):
        raise UnsupportedModelError(f"tensors of type {TensorProto.DataType.Name(dtype)} cannot be bound")
    nbytes = math.prod(shape) * numpy_type(dtype).itemsize
    if nbytes > _MOST_BYTES:
        raise _too_large(shape)
    return nbytes


def _too_large(shape: Sequence[int]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"a tensor of shape {list(shape)} fits into no memory",
        remedy="Export the step for a batch of the size that is trained with.",
    )


def memory_at(address: int, dtype: int, shape: Sequence[int]) -> NDArray[Any]:
    """Take memory that somebody else owns as an array, without copying it."""
    kind = numpy_type(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    if not nbytes:
        return np.empty(tuple(shape), kind)
    memory: NDArray[Any] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return memory.view(kind).reshape(tuple(shape))


def has_fixed_size(dtype: int) -> bool:
    """Whether elements of a ``TensorProto.DataType`` are whole bytes, as many for each."""
    return dtype in _FIXED_SIZE


def numpy_type(dtype: int) -> np.dtype[Any]:
    """Give NumPy's name of a type."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
