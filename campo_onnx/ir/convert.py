"""Low-precision copies of constants."""

from pathlib import Path

import onnx
from onnx import TensorProto, numpy_helper

from campo_onnx.ir.constants import external_data, is_external
from campo_onnx.ops.precision import Precision

SOURCE_TYPE_KEY = "campo_onnx.source_type"
"""Marks external data that is still in another type: the exporter converts it as it writes."""


def converted(tensor: TensorProto, name: str, to: Precision, folder: Path | None) -> TensorProto:
    """Make the low version of an FP32 constant.

    A constant inside the model is rounded here (to nearest, ties to even). One whose bytes lie
    outside is only described: its entry points to the FP32 bytes and says so, and the exporter
    converts them piece by piece, so that no large weight is ever loaded whole.
    """
    if not is_external(tensor):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(to.onnx_dtype)
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), name)
    data = external_data(tensor, folder)
    low = TensorProto(
        name=name, data_type=to.onnx_dtype, dims=tensor.dims, data_location=TensorProto.EXTERNAL
    )
    location = {entry.key: entry.value for entry in tensor.external_data}["location"]
    for key, value in (
        ("location", location),
        ("offset", str(data.offset_bytes)),
        ("length", str(data.length_bytes)),
        (SOURCE_TYPE_KEY, str(tensor.data_type)),
    ):
        low.external_data.add(key=key, value=value)
    return low
