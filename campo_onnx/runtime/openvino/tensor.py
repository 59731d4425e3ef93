"""Arrays as tensors of OpenVINO's, in the same memory, and back."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.runtime.openvino.installed import ov


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
