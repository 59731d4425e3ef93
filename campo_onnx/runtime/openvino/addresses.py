"""Requests that read and write memory which somebody else owns: nothing is copied on the way in or out."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.runtime.api import Place
from campo_onnx.runtime.host_tensor import memory_at
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.openvino.installed import ov


def as_openvino(array: NDArray[Any]) -> "ov.Tensor":
    """Take an array's memory as a tensor of OpenVINO's; the caller keeps the array alive.

    BF16 is passed as its bits, since OpenVINO's Python types have no such element. The tensor then holds no
    reference to the memory.
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


_REMEMBERED = 16
"""Addresses of one port whose tensors are kept: allocators give the same few in turn."""


class AddressedRequest:
    """A request that is run on addresses, from any thread; one run at a time.

    Inputs and outputs are in the order in which :meth:`run` is given addresses, with their positions in the
    graph; None for an input that nothing reads.
    """

    def __init__(
        self,
        request: Any,
        *,
        reads: Sequence[tuple[Place, int | None]],
        writes: Sequence[tuple[Place, int | None]],
    ) -> None:
        self._request = request
        self._reads = [_Port.of(place, position, request.set_input_tensor) for place, position in reads]
        self._writes = [_Port.of(place, position, request.set_output_tensor) for place, position in writes]
        self._lock = threading.Lock()

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        """Run the graph; see :class:`~campo_onnx.runtime.api.AddressedProgram`."""
        with self._lock:
            try:
                for ports, addresses in ((self._reads, read_at), (self._writes, written_at)):
                    for port, address in zip(ports, addresses, strict=True):
                        if port is not None:
                            port.bind(address)
                self._request.infer(share_outputs=True)
            except RuntimeError as error:
                raise ModelError("the graph fails while it runs", why=str(error).strip()) from None


class _Port:
    """One input or output, and where it lies now."""

    __slots__ = ("_address", "_place", "_position", "_set", "_tensors")

    def __init__(self, place: Place, position: int, bind: Callable[[int, Any], None]) -> None:
        self._place, self._position, self._set = place, position, bind
        self._address = 0
        self._tensors: dict[int, Any] = {}

    @classmethod
    def of(cls, place: Place, position: int | None, bind: Callable[[int, Any], None]) -> "_Port | None":
        if place.processor != CPU:
            raise UnsupportedModelError(
                f"the tensor bound to {place.name!r} is not in the host's memory",
                why="OpenVINO's CPU plugin runs on that alone",
            )
        return None if position is None else cls(place, position, bind)

    def bind(self, address: int) -> None:
        if address == self._address:
            return
        if address not in self._tensors:
            if len(self._tensors) >= _REMEMBERED:
                self._tensors.pop(next(iter(self._tensors)))
            self._tensors[address] = as_openvino(memory_at(address, self._place.dtype, self._place.shape))
        self._set(self._position, self._tensors[address])
        self._address = address
