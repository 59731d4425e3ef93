"""Constants: where they lie, and reading their values a piece at a time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError

_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """Where the bytes of an initializer lie outside the model file.

    Parameters
    ----------
    path
        The data file.
    offset_bytes, length_bytes
        The part of it.
    """

    path: Path
    offset_bytes: int
    length_bytes: int


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes lie outside the model file."""
    return tensor.data_location == TensorProto.EXTERNAL


def external_data(tensor: TensorProto, folder: Path | None) -> ExternalData:
    """Find the bytes of an external tensor.

    Parameters
    ----------
    tensor
        An initializer with external data.
    folder
        Folder of the model file; None for a model that came without one.

    Raises
    ------
    ModelError
        If the file is missing, too short, or lies outside the model's folder.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            f"initializer {tensor.name!r} keeps its data in the file {location!r}",
            why="the model was passed in memory, so its folder is unknown",
            remedy="Pass the path of the model file instead.",
        )
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder.resolve()):
        raise ModelError(
            f"initializer {tensor.name!r} points to the data file {location!r} outside the model's folder",
            remedy="Save the model with its external data beside it.",
        )
    length = _nbytes(tensor)
    offset, stated = entries.get("offset", "0"), entries.get("length", str(length))
    if not offset.isdecimal() or stated != str(length):
        raise ModelError(
            f"initializer {tensor.name!r} misstates its data in the file {location!r}",
            why=f"it says {stated} bytes from byte {offset}, and {length} bytes are its size",
            remedy="Export the model again.",
        )
    if not path.is_file():
        raise ModelError(
            f"the data file {path} of initializer {tensor.name!r} is missing",
            remedy="Copy it beside the model, under the same name.",
        )
    needed = int(offset) + length
    if path.stat().st_size < needed:
        raise ModelError(
            f"the data file {path} ends before the data of initializer {tensor.name!r}",
            why=f"it has {path.stat().st_size} bytes, {needed} are needed",
            remedy="Copy the whole file again.",
        )
    return ExternalData(path=path, offset_bytes=int(offset), length_bytes=length)


def _nbytes(tensor: TensorProto) -> int:
    elements = math.prod(tensor.dims)
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return (elements + 1) // 2
    return elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def chunks(tensor: TensorProto, folder: Path | None) -> Iterator[NDArray[Any]]:
    """Read a constant piece by piece, flattened; external data is mapped, never loaded whole."""
    flat = _mapped(tensor, folder) if is_external(tensor) else _array(tensor).reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS]


def _mapped(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    data = external_data(tensor, folder)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if not data.length_bytes:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(data.path, dtype, "r", data.offset_bytes, (data.length_bytes // dtype.itemsize,))


def _array(tensor: TensorProto) -> NDArray[Any]:
    try:
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"initializer {tensor.name!r} is damaged", why=str(error), remedy="Export the model again."
        ) from error


def constants_of(graph: onnx.GraphProto) -> Mapping[str, TensorProto]:
    """Initializers and outputs of Constant nodes, by tensor name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            tensor = _constant_node_value(node)
            if tensor is not None:
                found[node.output[0]] = tensor
    return found


def _constant_node_value(node: onnx.NodeProto) -> TensorProto | None:
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(attribute.t)
    elif attribute.name in ("value_float", "value_floats"):
        tensor = numpy_helper.from_array(np.asarray(onnx.helper.get_attribute_value(attribute), np.float32))
    elif attribute.name in ("value_int", "value_ints"):
        tensor = numpy_helper.from_array(np.asarray(onnx.helper.get_attribute_value(attribute), np.int64))
    else:
        return None  # strings and sparse tensors have no precision
    tensor.name = node.output[0]
    return tensor
