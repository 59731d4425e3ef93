"""The mark of an exported step whose forms are chosen when it is lowered for a target."""

import onnx

from campo_onnx.ir.proto import metadata, set_metadata

_KEY, _PORTABLE = "campo_onnx.form", "portable"


def mark_portable(model: onnx.ModelProto) -> None:
    """Say of a model that its forms were chosen for no target."""
    set_metadata(model, _KEY, _PORTABLE)


def is_portable(model: onnx.ModelProto) -> bool:
    """Whether a model says that its forms were chosen for no target."""
    return metadata(model, _KEY) == _PORTABLE


def mark_lowered(model: onnx.ModelProto) -> None:
    """Take the mark from a model."""
    set_metadata(model, _KEY, "")
