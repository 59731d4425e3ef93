"""The mark of an exported step whose forms are chosen when it is lowered for a target."""

import onnx

_KEY, _PORTABLE = "campo_onnx.form", "portable"


def mark_portable(model: onnx.ModelProto) -> None:
    """Say of a model that its forms were chosen for no target."""
    model.metadata_props.add(key=_KEY, value=_PORTABLE)


def is_portable(model: onnx.ModelProto) -> bool:
    """Whether a model says that its forms were chosen for no target."""
    return any(entry.key == _KEY and entry.value == _PORTABLE for entry in model.metadata_props)


def mark_lowered(model: onnx.ModelProto) -> None:
    """Take the mark from a model."""
    others = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != _KEY]
    del model.metadata_props[:]
    for key, value in others:
        model.metadata_props.add(key=key, value=value)
