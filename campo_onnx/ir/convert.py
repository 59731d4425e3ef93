"""Low-precision copies of constants."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.ir.constants import chunks, external_data, is_external
from campo_onnx.ops.precision import Precision

SOURCE_TYPE_KEY = "campo_onnx.source_type"
"""Marks external data that is still in another type: it is converted as it is written or loaded."""


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


def converted_chunks(tensor: TensorProto, folder: Path | None) -> Iterator[NDArray[Any]]:
    """Read a constant piece by piece, in the type that it is declared to have."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    source_type = _source_type(tensor)
    if source_type is not None:
        stored = deepcopy(tensor)
        stored.data_type = int(source_type)
        tensor = stored
    for chunk in chunks(tensor, folder):
        yield chunk.astype(dtype, copy=False)


def with_conversions(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """Bring external data that is still in another type into the model; it is not changed."""
    if all(_source_type(tensor) is None for tensor in model.graph.initializer):
        return model
    copy = deepcopy(model)
    for tensor in copy.graph.initializer:
        if _source_type(tensor) is not None:
            tensor.raw_data = b"".join(chunk.tobytes() for chunk in converted_chunks(tensor, folder))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return copy


def _source_type(tensor: TensorProto) -> str | None:
    return next((entry.value for entry in tensor.external_data if entry.key == SOURCE_TYPE_KEY), None)
