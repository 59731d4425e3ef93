"""Tensors in the host's memory, which OpenVINO reads and writes in place."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.openvino.installed import ov

_ALIGNMENT_BYTES = 64
_MOST_BYTES = 1 << 48  # more than any processor addresses


class HostTensor:
    """Memory of one tensor on a CPU.

    Parameters
    ----------
    array
        The memory, C-contiguous.
    """

    __slots__ = ("_array", "_dtype")

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._dtype = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """Static dimensions."""
        return self._array.shape

    @property
    def dtype(self) -> int:
        """``TensorProto.DataType`` of its elements."""
        return self._dtype

    def read(self) -> NDArray[Any]:
        """Copy it."""
        return self._array.copy()

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of its shape and type to it."""
        if array.shape != self.shape or array.dtype != self._array.dtype:
            raise UnsupportedModelError(
                "an array does not fit its tensor",
                why=f"it is {array.dtype}{list(array.shape)}, and the tensor "
                f"{self._array.dtype}{list(self.shape)}",
            )
        self._array[...] = array

    def shared(self) -> NDArray[Any]:
        """Give the memory itself."""
        return self._array

    def slice(self, first: int, shape: Sequence[int]) -> "HostTensor":
        """Give the tensor of a shape that begins at an element, in the same memory."""
        flat = self._array.reshape(-1)
        end = first + math.prod(shape)
        if not 0 <= first <= end <= flat.size:
            raise ValueError(f"elements {first} to {end} of a tensor of {flat.size}")
        return HostTensor(flat[first:end].reshape(tuple(shape)))


def empty(shape: Sequence[int], dtype: int) -> HostTensor:
    """Allocate a tensor of zeros at an aligned address.

    Raises
    ------
    UnsupportedModelError
        If no memory holds it.
    """
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    memory = None
    if nbytes <= _MOST_BYTES:
        with suppress(MemoryError):
            memory = np.zeros(nbytes + _ALIGNMENT_BYTES, np.uint8)
    if memory is None:
        raise UnsupportedModelError(
            f"a tensor of shape {list(shape)} fits into no memory",
            remedy="Export the step for a batch of the size that is trained with.",
        )
    first = -memory.ctypes.data % _ALIGNMENT_BYTES
    return HostTensor(memory[first : first + nbytes].view(kind).reshape(tuple(shape)))


def as_openvino(array: NDArray[Any]) -> "ov.Tensor":
    """Take an array's memory as a tensor of OpenVINO's; the caller keeps the array alive.

    BF16 is taken by its bits: OpenVINO's Python types have no such element. That tensor does not hold a
    reference to its memory.
    """
    if onnx.helper.np_dtype_to_tensor_dtype(array.dtype) == TensorProto.BFLOAT16:
        return ov.Tensor(array.view(np.uint16), ov.Shape(list(array.shape)), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def as_array(tensor: "ov.Tensor") -> NDArray[Any]:
    """Copy a tensor of OpenVINO's; BF16, which it shows as FP16, by its bits."""
    if tensor.element_type == ov.Type.bf16:
        bits: NDArray[Any] = tensor.data.view(np.uint16)
        return bits.view(onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)).copy()
    return np.array(tensor.data)
