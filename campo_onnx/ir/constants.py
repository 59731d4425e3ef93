"""Constants: where they lie, and reading their values a piece at a time."""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.sort import graphs_of, with_bodies

_CHUNK_ELEMENTS = 1 << 22
_DIGITS = 19  # of a position in a file
_SMALL_BYTES = 1024
_DENSE_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """The place of an initializer's bytes outside the model file."""

    path: Path
    offset_bytes: int
    length_bytes: int


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes lie outside the model file."""
    return tensor.data_location == TensorProto.EXTERNAL


def external_data(tensor: TensorProto, folder: Path | None) -> ExternalData:
    """Find the bytes of an external tensor."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            f"initializer {tensor.name!r} keeps its data in the file {location!r}",
            why="the model was passed in memory, so its folder is unknown",
            remedy="Pass the path of the model file instead.",
        )
    path = data_path(location, folder)
    if path is None:
        raise ModelError(
            f"initializer {tensor.name!r} points to the data file {location!r} outside the model's folder",
            remedy="Save the model with its external data beside it.",
        )
    length = _nbytes(tensor)
    offset, stated = entries.get("offset", "0"), entries.get("length", str(length))
    if not _is_position(offset) or stated != str(length):
        raise ModelError(
            f"initializer {tensor.name!r} misstates its data in the file {location!r}",
            why=f"it says {stated[:_DIGITS]} bytes from byte {offset[:_DIGITS]}, "
            f"and {length} bytes are its size",
            remedy="Export the model again.",
        )
    if not path.is_file():
        what = "not a regular file" if path.exists() else "missing"
        raise ModelError(
            f"the data file {path} of initializer {tensor.name!r} is {what}",
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


def data_path(location: str, folder: Path) -> Path | None:
    """Path of what a model in `folder` keeps at `location`; None if that is outside the folder."""
    if not location:
        return None
    try:
        path = (folder / location).resolve()
        path.is_file()
    except (OSError, ValueError):  # a name that is too long or holds a null character
        return None
    return path if path.is_relative_to(folder.resolve()) else None


def _is_position(text: str) -> bool:
    return len(text) <= _DIGITS and text.isascii() and text.isdecimal()


def _nbytes(tensor: TensorProto) -> int:
    if any(size < 0 for size in tensor.dims):
        raise ModelError(
            f"initializer {tensor.name!r} has the shape {list(tensor.dims)}", remedy="Export the model again."
        )
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING) or (
        tensor.data_type not in TensorProto.DataType.values()
    ):
        raise ModelError(
            f"initializer {tensor.name!r} keeps data of type {tensor.data_type} outside the file",
            why="no tensor of that type can lie there",
            remedy="Export the model again.",
        )
    elements = math.prod(tensor.dims)
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return (elements + 1) // 2
    return elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def chunks(tensor: TensorProto, folder: Path | None) -> Iterator[NDArray[Any]]:
    """Read a constant piece by piece, flattened; external data is mapped, a piece at a time."""
    if is_external(tensor):
        yield from _mapped(tensor, folder)
        return
    flat = array_of(tensor).reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS]


def defaults_of(model: onnx.ModelProto, folder: Path | None) -> dict[str, NDArray[Any]]:
    """Read the values of inputs that need not be given: those that are initializers as well."""
    inputs = {value.name for value in model.graph.input}
    return {tensor.name: whole(tensor, folder) for tensor in model.graph.initializer if tensor.name in inputs}


def whole(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    """Read a constant at once, wherever it lies."""
    none = np.empty(0, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return np.concatenate([none, *chunks(tensor, folder)]).reshape(tensor.dims)


def read_small(tensors: Iterable[TensorProto], folder: Path) -> None:
    """Bring small tensors that lie outside into the model, in place: a shape is needed to plan.

    Exporters move tensors of any size out of the file (``size_threshold=0``).
    """
    for tensor in tensors:
        if not is_external(tensor) or math.prod(tensor.dims) > _SMALL_BYTES or _nbytes(tensor) > _SMALL_BYTES:
            continue
        data = external_data(tensor, folder)
        with data.path.open("rb") as file:
            file.seek(data.offset_bytes)
            tensor.raw_data = file.read(data.length_bytes)
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def _mapped(tensor: TensorProto, folder: Path | None) -> Iterator[NDArray[Any]]:
    """Map pieces: what was read of a mapping counts as memory of the process until it ends."""
    data = external_data(tensor, folder)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    elements = data.length_bytes // dtype.itemsize
    for start in range(0, elements, _CHUNK_ELEMENTS):
        offset_bytes = data.offset_bytes + start * dtype.itemsize
        yield np.memmap(data.path, dtype, "r", offset_bytes, (min(_CHUNK_ELEMENTS, elements - start),))


def array_of(tensor: TensorProto, kind: str = "initializer") -> NDArray[Any]:
    """Read a tensor whose bytes are here; ModelError names one that is damaged, as one of a kind."""
    try:
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{kind} {tensor.name!r} is damaged", why=str(error), remedy="Export the model again."
        ) from error


def tensors_of(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor that may have its bytes outside, those of bodies included."""
    for inner in graphs_of(graph):
        yield from inner.initializer
    for node in with_bodies(graph.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors


def locations(model: onnx.ModelProto) -> Iterator[str]:
    """Yield where tensors of a model say that their bytes lie."""
    for tensor in filter(is_external, tensors_of(model.graph)):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def data_files(model: onnx.ModelProto, folder: Path | None) -> frozenset[Path]:
    """Files outside the model that hold its tensors."""
    if folder is None:
        return frozenset()
    paths = (data_path(name, folder) for name in locations(model))
    return frozenset(path for path in paths if path is not None)


def constants_of(graph: onnx.GraphProto) -> Mapping[str, TensorProto]:
    """Initializers and outputs of Constant nodes, by tensor name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            tensor = _constant_node_value(node)
            if tensor is not None:
                constants[node.output[0]] = tensor
    return constants


def _constant_node_value(node: onnx.NodeProto) -> TensorProto | None:
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = deepcopy(attribute.t)
    elif attribute.name in ("value_float", "value_floats"):
        tensor = numpy_helper.from_array(np.asarray(onnx.helper.get_attribute_value(attribute), np.float32))
    elif attribute.name in ("value_int", "value_ints"):
        tensor = numpy_helper.from_array(np.asarray(onnx.helper.get_attribute_value(attribute), np.int64))
    else:
        return None  # strings have no precision
    tensor.name = node.output[0]
    return tensor


def write_out_sparse(graph: onnx.GraphProto) -> None:
    """Write sparse constants out as consumers read them, whole, in place; in bodies, too.

    ONNX's inference takes a sparse initializer for a tensor without a type, and its checker refuses the file.
    """
    _refuse_large_sparse(graph)
    for inner in graphs_of(graph):
        inner.initializer.extend(map(_dense, inner.sparse_initializer))
        del inner.sparse_initializer[:]
        for attribute in filter(_is_sparse, _attributes(inner)):
            attribute.CopyFrom(onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor)))


def _attributes(graph: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    return (a for node in graph.node if node.op_type == "Constant" for a in node.attribute)


def _is_sparse(attribute: onnx.AttributeProto) -> bool:
    return attribute.type == onnx.AttributeProto.SPARSE_TENSOR and attribute.name == "sparse_value"


def _refuse_large_sparse(graph: onnx.GraphProto) -> None:
    """Refuse sparse constants that are too large written out: all together, as a small file has many."""
    total = 0
    for inner in graphs_of(graph):
        attributes = [a.sparse_tensor for a in _attributes(inner) if _is_sparse(a)]
        for sparse in (*inner.sparse_initializer, *attributes):
            name, shape = sparse.values.name, list(sparse.dims)
            if any(size < 0 for size in shape):
                raise ModelError(
                    f"the sparse constant {name!r} has the shape {shape}", remedy="Export the model again."
                )
            total += math.prod(max(1, size) for size in shape)
            if total > _DENSE_ELEMENTS:
                raise UnsupportedModelError(
                    f"the sparse constant {name!r} has the shape {shape}",
                    why=f"sparse constants are written out as they are read, and with it they have {total:,} "
                    f"elements, of at most {_DENSE_ELEMENTS:,}",
                    remedy="Make it an input of the graph.",
                )


def _dense(sparse: onnx.SparseTensorProto) -> TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    if is_external(sparse.values) or is_external(sparse.indices):
        raise UnsupportedModelError(
            f"the sparse constant {name!r} lies outside the model file", remedy="Save it within the model."
        )
    values, places = array_of(sparse.values), array_of(sparse.indices)
    if (places < 0).any():  # NumPy counts it from the end
        raise _damaged(name, "an index is negative")
    try:
        dense = np.zeros(shape, values.dtype)
        dense[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
        return numpy_helper.from_array(dense, name)
    except (IndexError, TypeError, ValueError) as error:
        raise _damaged(name, str(error)) from error


def _damaged(name: str, why: str) -> ModelError:
    return ModelError(f"the sparse constant {name!r} is damaged", why=why, remedy="Export the model again.")
