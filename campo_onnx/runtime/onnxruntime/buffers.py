"""Device memory that several tensors share: each lies in a slice, and sessions are bound to slices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import Machine

ALIGNMENT_BYTES = 256
"""Where a slice may begin: what CUDA's own allocator aligns to, and more than any CPU kernel asks for."""


class FlatBuffer:
    """A run of elements of one type on one device, zero at first.

    Its address never changes, so that bindings and captured graphs stay valid.

    Parameters
    ----------
    elements
        How many.
    dtype
        ``TensorProto.DataType``.
    machine
        Where it lies.
    """

    def __init__(self, elements: int, dtype: int, machine: Machine) -> None:
        self.elements = elements
        self.dtype = np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
        self._provider = machine.provider
        if machine.provider == "cpu":
            # The value shares the array's memory: nothing is copied to read it.
            self._array: NDArray[Any] | None = _aligned_zeros(elements, self.dtype)
            self._value = ort.OrtValue.ortvalue_from_numpy(self._array, "cpu", 0)
        else:
            self._array = None
            self._value = ort.OrtValue.ortvalue_from_numpy(
                np.zeros(elements, self.dtype), machine.provider, 0
            )

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.elements * self.dtype.itemsize

    def bind_input(self, binding: ort.IOBinding, name: str, shape: Sequence[int], first: int = 0) -> None:
        """Let an input read the slice that begins at element `first`."""
        binding.bind_input(name, self._provider, 0, self.dtype.type, list(shape), self._address(first, shape))

    def bind_output(self, binding: ort.IOBinding, name: str, shape: Sequence[int], first: int = 0) -> None:
        """Let an output write the slice that begins at element `first`."""
        binding.bind_output(
            name, self._provider, 0, self.dtype.type, list(shape), self._address(first, shape)
        )

    def read(self) -> NDArray[Any]:
        """Copy it from the device."""
        return np.array(self._value.numpy() if self._array is None else self._array)

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of as many elements to the device."""
        flat = np.ascontiguousarray(array, self.dtype).reshape(self.elements)
        if self._array is None:
            self._value.update_inplace(flat)
        else:
            self._array[:] = flat

    def shared(self) -> NDArray[Any] | None:
        """Give the memory itself as an array; None where it is not on the CPU."""
        return self._array

    def _address(self, first: int, shape: Sequence[int]) -> int:
        last = first + int(np.prod(shape, dtype=np.int64))
        if not 0 <= first <= last <= self.elements:
            raise ValueError(f"elements {first} to {last} of a buffer of {self.elements}")
        return int(self._value.data_ptr()) + first * self.dtype.itemsize


def _aligned_zeros(elements: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    raw = np.zeros(elements * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[first : first + elements * dtype.itemsize].view(dtype)
