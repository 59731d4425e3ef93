"""The sizes at which a graph of symbolic dimensions holds, as its file says."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import onnx

from campo_onnx.errors import ModelError, UsageError
from campo_onnx.files.codec import DecodeError, from_json, from_plain
from campo_onnx.ir.proto import metadata, set_metadata

_KEY = "campo_onnx.sizes"


class SizeRange(NamedTuple):
    """Sizes of a dimension."""

    example: int  # the one that the graph was exported at, and that it is planned at unless another is chosen
    # least, most: between which the graph holds, both included.
    least: int
    most: int


def write_ranges(model: onnx.ModelProto, ranges: Mapping[str, SizeRange]) -> None:
    """Let a model say at which sizes it holds, by dimension; nothing where there are none."""
    set_metadata(model, _KEY, json.dumps(ranges) if ranges else "")


def ranges_of(model: onnx.ModelProto) -> Mapping[str, SizeRange]:
    """Read at which sizes a model says that it holds; empty where it says nothing."""
    text = metadata(model, _KEY) or "{}"
    try:
        read = from_plain(from_json(text), dict[str, SizeRange])
    except DecodeError:
        raise ModelError(
            f"the metadata {_KEY!r} of the model is damaged", remedy="Export the step again."
        ) from None
    return {name: sizes for name, sizes in read.items() if 0 < sizes.least <= sizes.example <= sizes.most}


def with_examples(model: onnx.ModelProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Add the sizes that a model was exported at to those that are chosen."""
    ranges = ranges_of(model)
    for name, sizes in ranges.items():
        if not sizes.least <= dims.get(name, sizes.example) <= sizes.most:
            raise outside(name, dims[name], sizes)
    return {**{name: sizes.example for name, sizes in ranges.items()}, **dims}


def outside(name: str, size: int, sizes: SizeRange) -> UsageError:
    """Refuse a size at which the graph does not hold."""
    return UsageError(
        f"Dimension {name!r} cannot have size {size}",
        why=f"the step holds from {sizes.least} to {sizes.most}",
        remedy=f"Export it with dynamic_shapes that say so: torch.export.Dim({name!r}, max={size}).",
    )
