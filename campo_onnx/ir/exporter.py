"""Write a model: checked, atomic, with external data streamed and never loaded whole."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto

from campo_onnx.errors import UsageError
from campo_onnx.files import replacing
from campo_onnx.ir.check import check_written
from campo_onnx.ir.constants import chunks, is_external
from campo_onnx.ir.convert import SOURCE_TYPE_KEY
from campo_onnx.ir.sort import bodies

_ALIGNMENT_BYTES = 4096  # external tensors start on a page, so that they can be mapped
_INLINE_LIMIT_BYTES = 1 << 30  # protobuf ends at 2 GiB; initializers move out of the file well before
_INLINE_ALWAYS_BYTES = 1024


def data_beside(target: Path) -> Path:
    """Where external data of the model file `target` is written."""
    return target.with_name(f"{target.name}.data")


def check_destination(target: Path, *, force: bool, source: Path | None = None) -> None:
    """Find out before any work whether `target` can be written.

    Raises
    ------
    UsageError
        If it is a folder, its folder is missing or not writable, or it, or the data file beside it,
        exists and `force` is off.
    """
    if target.is_dir():
        raise UsageError(f"the output {target} is a folder", remedy="Name a file in it.")
    if not target.parent.is_dir():
        raise UsageError(
            f"the folder {target.parent} of the output does not exist", remedy="Create it first."
        )
    if source is not None and target.exists() and source.exists() and target.samefile(source):
        if not force:
            raise UsageError(
                f"the output {target} is the input itself",
                remedy="Choose another name, or pass --force to overwrite it.",
            )
    elif target.exists() and not force:
        raise UsageError(
            f"the output {target} exists", remedy="Choose another name, or pass --force to overwrite it."
        )
    elif (data := data_beside(target)).exists() and not force:
        raise UsageError(
            f"the file {data} exists, where the weights of {target.name} may have to go",
            remedy="Choose another name for the output, or pass --force to overwrite both.",
        )
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"the output {target} cannot be written", why=f"no permission to write into {target.parent}"
        )


def export_model(model: onnx.ModelProto, target: Path, *, folder: Path | None = None) -> None:
    """Write a model beside its final place, check it in full, then move it there.

    Parameters
    ----------
    model
        The model; its external data, if any, refers to files in `folder`.
    target
        Where to write. External data goes to ``<target>.data``.
    folder
        Folder of the model the external data comes from.

    Raises
    ------
    UsageError
        If the file cannot be written (a full disk, a missing permission).
    onnx.checker.ValidationError, onnx.shape_inference.InferenceError
        If the model is invalid: a bug of ours, since the importer refuses invalid models.
    """
    with replacing(target) as path:
        written = _with_data_beside(model, data_beside(path), folder)
        path.write_bytes(written.SerializeToString(deterministic=True))
        check_written(written, path)


def _with_data_beside(model: onnx.ModelProto, data: Path, folder: Path | None) -> onnx.ModelProto:
    """Stream external tensors, and inline ones of a model near protobuf's limit, into `data`."""
    too_large = sum(len(t.raw_data) for t in model.graph.initializer) > _INLINE_LIMIT_BYTES

    def belongs_outside(tensor: TensorProto) -> bool:
        return is_external(tensor) or (too_large and len(tensor.raw_data) > _INLINE_ALWAYS_BYTES)

    if not any(map(belongs_outside, _tensors(model.graph))):
        return model
    written = onnx.ModelProto()
    written.CopyFrom(model)
    with data.open("wb") as file:
        for tensor in filter(belongs_outside, _tensors(written.graph)):
            _move_out(tensor, file, data.name, folder)
    return written


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor that may have its bytes outside, those of bodies included."""
    yield from graph.initializer
    for node in graph.node:
        yield from (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)
        for body in bodies(node):
            yield from _tensors(body)


def _move_out(tensor: TensorProto, file: BinaryIO, location: str, folder: Path | None) -> None:
    file.write(b"\0" * (-file.tell() % _ALIGNMENT_BYTES))
    offset = file.tell()
    target_dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    for chunk in chunks(_as_stored(tensor), folder):
        file.write(chunk.astype(target_dtype, copy=False).tobytes())
    length = file.tell() - offset
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _as_stored(tensor: TensorProto) -> TensorProto:
    """Describe the bytes as they lie outside now, before conversion."""
    source_type = {e.key: e.value for e in tensor.external_data}.get(SOURCE_TYPE_KEY)
    if source_type is None:
        return tensor
    stored = TensorProto()
    stored.CopyFrom(tensor)
    stored.data_type = int(source_type)
    return stored
