"""Write a model: checked, atomic, with external data streamed and never loaded whole."""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import onnx
from onnx import TensorProto

from campo_onnx.errors import UsageError
from campo_onnx.files import cause, replacing_all
from campo_onnx.ir.check import check_written
from campo_onnx.ir.constants import data_files, is_external, locations, tensors_of
from campo_onnx.ir.convert import converted_chunks

_ALIGNMENT_BYTES = 4096  # external tensors start on a page, so that they can be mapped
_INLINE_LIMIT_BYTES = 1 << 30  # protobuf ends at 2 GiB; initializers move out of the file well before
_INLINE_ALWAYS_BYTES = 1024
_STREAM = "-"
_OTHER_NAME = "Choose another name."
_DIGITS = 16  # of the digest in the name of a data file


def check_destination(target: Path, *, force: bool, source: Path | None = None) -> None:
    """Find out before any work whether `target` can be written."""
    if str(target) == _STREAM:
        raise UsageError("the output - would be standard output", remedy="Name a file.")
    _check_name(target)
    if target.is_dir():
        raise UsageError(f"the output {target} is a folder", remedy="Name a file in it.")
    if (stream := _stream_into(target)) is not None:
        raise UsageError(
            f"the output {target} is where {stream} goes",
            why="the file would be replaced, and all that is printed be lost",
            remedy=_OTHER_NAME,
        )
    if target.exists() and not target.is_file():
        raise UsageError(f"the output {target} is not a regular file", remedy="Name a file.")
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
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"the output {target} cannot be written", why=f"no permission to write into {target.parent}"
        )


def _stream_into(target: Path) -> str | None:
    """Name the stream of this process that goes into a regular file (``/dev/stdout`` is such a name)."""
    for descriptor, name in ((1, "standard output"), (2, "standard error")):
        with suppress(OSError):
            if target.is_file() and os.path.samestat(target.stat(), os.fstat(descriptor)):
                return name
    return None


def _check_name(target: Path) -> None:
    try:
        str(target).encode()
        target.stat()
    except UnicodeEncodeError:
        raise UsageError(
            f"the output {str(target)!r} cannot be written", why="its name is not UTF-8", remedy=_OTHER_NAME
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the output {target} cannot be written", why=cause(error), remedy=_OTHER_NAME
        ) from None


def export_model(
    model: onnx.ModelProto,
    target: Path,
    *,
    folder: Path | None = None,
    texts: Mapping[Path, str] = MappingProxyType({}),
    read: frozenset[Path] = frozenset(),
) -> None:
    """Write a model beside its final place, check it in full, then move it there.

    Parameters
    ----------
    target
        Where to write. External data goes beside it, to a file that is named by its content
        (``<target>.<digest>.data``): an old model never meets new weights, whenever a kill comes. The data
        file that the replaced model had is removed at the end.
    folder
        Folder of the model that external data comes from.
    texts
        What further files hold, by their path: all files are written, or none.
    read
        Further files that nothing is written over: the data files of the model that this one was made
        from.

    Raises
    ------
    UsageError
        If the file cannot be written (a full disk, a missing permission), or holds the weights of the
        model that is written.
    onnx.checker.ValidationError, onnx.shape_inference.InferenceError
        If the model is invalid: a bug of ours, since the importer refuses invalid models.
    """
    read |= data_files(model, folder)
    check_not_read((target, *texts), read)
    with replacing_all([*texts, target]) as (*beside, path):
        for place, text in zip(beside, texts.values(), strict=True):
            place.write_text(text, encoding="utf-8")
        written = _with_data_beside(model, path, folder)
        path.write_bytes(written.SerializeToString(deterministic=True))
        check_written(written, path)
    _remove_old_data(target, written, read)


def check_not_read(targets: Iterable[Path], read: Iterable[Path]) -> None:
    """Make sure that nothing is written over a file that is read, `--force` or not."""
    taken = {path.resolve() for path in read}
    for target in targets:
        if target.resolve() in taken:
            what = f"{target} holds the weights of the model"
            raise UsageError(what, why="writing there would destroy it", remedy=_OTHER_NAME)


def _remove_old_data(target: Path, written: onnx.ModelProto, read: frozenset[Path]) -> None:
    """Remove data files of an earlier model at `target`; those that were read stay."""
    final = target.resolve()
    pattern = re.compile(re.escape(final.name) + rf"\.[0-9a-f]{{{_DIGITS}}}\.data")
    needed = frozenset(locations(written))
    for path in final.parent.glob(f"{glob.escape(final.name)}.*.data"):
        if pattern.fullmatch(path.name) and path.name not in needed and path.resolve() not in read:
            path.unlink(missing_ok=True)


def _with_data_beside(model: onnx.ModelProto, path: Path, folder: Path | None) -> onnx.ModelProto:
    """Stream external tensors, and inline ones of a model near protobuf's limit, into a file of their own."""
    too_large = sum(len(t.raw_data) for t in model.graph.initializer) > _INLINE_LIMIT_BYTES

    def belongs_outside(tensor: TensorProto) -> bool:
        return is_external(tensor) or (too_large and len(tensor.raw_data) > _INLINE_ALWAYS_BYTES)

    if not any(map(belongs_outside, tensors_of(model.graph))):
        return model
    written = deepcopy(model)
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as file:
        stream = _Digested(file)
        moved = [t for t in tensors_of(written.graph) if belongs_outside(t)]
        for tensor in moved:
            _move_out(tensor, stream, folder)
    name = f"{path.name}.{stream.digest.hexdigest()}.data"
    data.rename(path.with_name(name))
    for tensor in moved:
        tensor.external_data.add(key="location", value=name)
    return written


class _Digested:
    """A file that is written once from its start, with a digest of all that was."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=_DIGITS // 2)
        self.position = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.position += len(data)


def _move_out(tensor: TensorProto, stream: _Digested, folder: Path | None) -> None:
    stream.write(b"\0" * (-stream.position % _ALIGNMENT_BYTES))
    offset = stream.position
    for chunk in converted_chunks(tensor, folder):
        stream.write(chunk.tobytes())
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", offset), ("length", stream.position - offset)):
        tensor.external_data.add(key=key, value=str(value))
