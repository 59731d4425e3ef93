"""Memory of tensors on a GPU: several may share it, in slices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from campo_onnx.runtime.host_tensor import end_of, nbytes_of, numpy_type
from campo_onnx.runtime.machine import CUDA
from campo_onnx.runtime.onnxruntime.installed import ort


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuTensor:
    """A tensor at an address that never changes, so that bindings and captured graphs stay valid.

    `memory` is a value of bytes, which slices share: these are copied as they are, whatever the type of the
    elements.
    """

    shape: tuple[int, ...]
    dtype: int
    memory: Any
    first_byte: int = 0
    processor: ClassVar[str] = CUDA

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: int) -> "GpuTensor":
        """Allocate one; see :func:`~campo_onnx.runtime.host_tensor.nbytes_of`."""
        nothing = np.zeros(max(nbytes_of(shape, dtype), 1), np.uint8)
        memory = ort.OrtValue.ortvalue_from_numpy(nothing, cls.processor, 0)
        return cls(shape=tuple(shape), dtype=dtype, memory=memory)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return nbytes_of(self.shape, self.dtype)

    @property
    def address(self) -> int:
        """Its address; never 0."""
        return int(self.memory.data_ptr()) + self.first_byte

    def read(self) -> NDArray[Any]:
        """Copy it to the host."""
        return np.array(self._array(self.memory.numpy()))

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of its shape to it."""
        value = np.asarray(array, numpy_type(self.dtype), order="C").reshape(self.shape)
        if self.nbytes == self.memory.tensor_size_in_bytes():
            self.memory.update_inplace(value.reshape(-1).view(np.uint8))
        elif self.nbytes:
            whole = self.memory.numpy()
            self._array(whole)[...] = value
            self.memory.update_inplace(whole)

    def shared(self) -> None:
        """Nothing: the memory is not the host's."""

    def slice(self, first: int, shape: Sequence[int]) -> "GpuTensor":
        """Give the tensor of a shape that begins at element `first`, in the same memory."""
        end_of(first, shape, math.prod(self.shape))
        return GpuTensor(
            shape=tuple(shape),
            dtype=self.dtype,
            memory=self.memory,
            first_byte=self.first_byte + first * numpy_type(self.dtype).itemsize,
        )

    def _array(self, memory: NDArray[Any]) -> NDArray[Any]:
        part = memory[self.first_byte : self.first_byte + self.nbytes]
        return part.view(numpy_type(self.dtype)).reshape(self.shape)
