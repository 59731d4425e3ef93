"""Memory of tensors on the processor that sessions run on: several tensors may share it, in slices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.onnxruntime.installed import ort

ALIGNMENT_BYTES = 256
"""Alignment of memory: that of CUDA's own allocator, and more than any CPU kernel asks for."""

_MOST_ELEMENTS = 1 << 48
"""Of a tensor; more bytes than this no processor addresses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnnxTensor:
    """A tensor at an address that never changes, so that bindings and captured graphs stay valid.

    Parameters
    ----------
    memory
        Bytes of the host, or a value of bytes on the GPU; slices share it.
    """

    shape: tuple[int, ...]
    dtype: int
    processor: str
    memory: Any
    first_byte: int = 0

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: int, processor: str) -> "OnnxTensor":
        """Allocate one.

        Raises
        ------
        UnsupportedModelError
            If it has more elements than can be addressed, or elements of no fixed size.
        """
        if math.prod(shape) > _MOST_ELEMENTS:
            raise UnsupportedModelError(
                f"an input or output of shape {list(shape)} fits into no memory",
                remedy="Export the step for a batch of the size that is trained with.",
            )
        if not has_fixed_size(dtype):
            raise UnsupportedModelError(f"tensors of type {TensorProto.DataType.Name(dtype)} cannot be bound")
        nbytes = math.prod(shape) * _numpy_type(dtype).itemsize
        if processor == "cpu":
            raw = np.zeros(nbytes + ALIGNMENT_BYTES, np.uint8)
            first = -raw.ctypes.data % ALIGNMENT_BYTES
            return cls(shape=shape, dtype=dtype, processor=processor, memory=raw[first : first + nbytes])
        # Bytes of a GPU are copied as they are, whatever the type of the elements.
        value = ort.OrtValue.ortvalue_from_numpy(np.zeros(max(nbytes, 1), np.uint8), processor, 0)
        return cls(shape=shape, dtype=dtype, processor=processor, memory=value)

    @classmethod
    def sharing(cls, array: NDArray[Any]) -> "OnnxTensor":
        """Take an array of the host as a tensor of a CPU; its elements lie one after the other."""
        array = np.asarray(array, order="C")
        dtype = int(helper.np_dtype_to_tensor_dtype(array.dtype))
        if not array.size:
            return cls.zeros(array.shape, dtype, "cpu")
        memory = array.reshape(-1).view(np.uint8)
        return cls(shape=array.shape, dtype=dtype, processor="cpu", memory=memory)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * _numpy_type(self.dtype).itemsize

    @property
    def address(self) -> int:
        """Its address; never 0."""
        begin = self.memory.ctypes.data if self.processor == "cpu" else self.memory.data_ptr()
        return int(begin) + self.first_byte

    def read(self) -> NDArray[Any]:
        """Copy it to the host."""
        if self.processor == "cpu":
            return np.array(self._array(self.memory))
        return np.array(self._array(self.memory.numpy()))

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of its shape to it."""
        dtype = _numpy_type(self.dtype)
        value = np.asarray(array, dtype, order="C").reshape(self.shape)
        if self.processor == "cpu":
            self._array(self.memory)[...] = value
            return
        whole = self.memory.numpy() if self.nbytes < self.memory.tensor_size_in_bytes() else None
        if whole is None:
            self.memory.update_inplace(value.reshape(-1).view(np.uint8))
        elif self.nbytes:
            self._array(whole)[...] = value
            self.memory.update_inplace(whole)

    def shared(self) -> NDArray[Any] | None:
        """Give the memory itself as an array; None where it is not on the CPU."""
        return self._array(self.memory) if self.processor == "cpu" else None

    def slice(self, first: int, shape: Sequence[int]) -> "OnnxTensor":
        """Give the tensor of a shape that begins at element `first`, in the same memory."""
        last = first + math.prod(shape)
        if not 0 <= first <= last <= math.prod(self.shape):
            raise ValueError(f"elements {first} to {last} of a tensor of {math.prod(self.shape)}")
        return OnnxTensor(
            shape=tuple(shape),
            dtype=self.dtype,
            processor=self.processor,
            memory=self.memory,
            first_byte=self.first_byte + first * _numpy_type(self.dtype).itemsize,
        )

    def _array(self, memory: NDArray[Any]) -> NDArray[Any]:
        part = memory[self.first_byte : self.first_byte + self.nbytes]
        return part.view(_numpy_type(self.dtype)).reshape(self.shape)


def has_fixed_size(dtype: int) -> bool:
    """Whether elements of a ``TensorProto.DataType`` are whole bytes, as many for each."""
    return dtype in _FIXED


_FIXED = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    )
)


def _numpy_type(dtype: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
