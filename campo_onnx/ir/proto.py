"""Edits of protobuf messages: items of a repeated field, fields of a copy, and metadata of a model."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from google.protobuf.message import Message
from onnx import ModelProto


def replace_items(field: Any, items: Sequence[Message]) -> None:
    """Put other messages into a repeated field; they may be some of those that it has."""
    copies = [deepcopy(item) for item in items]
    del field[:]
    field.extend(copies)


def without_graph(model: ModelProto) -> ModelProto:
    """Copy a model without its graph."""
    copy = ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        else:
            setattr(copy, field.name, value)
    return copy


def metadata(model: ModelProto, key: str) -> str | None:
    """Read an entry of a model's metadata; None where there is none."""
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Write an entry of a model's metadata, in place of an older one; ``""`` leaves it out."""
    replace_items(model.metadata_props, [entry for entry in model.metadata_props if entry.key != key])
    if value:
        model.metadata_props.add(key=key, value=value)
