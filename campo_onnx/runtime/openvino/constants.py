"""Constants of a graph in the form that OpenVINO reads."""

import os
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import ExternalDataInfo

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.sort import bodies, with_bodies


def write_beside(model: onnx.ModelProto, data: Path, folder: Path) -> Path:
    """Write a graph into a folder, and links to the files of its constants beside it.

    Constants of the model refer to files below `data`.
    """
    locations = {ExternalDataInfo(c).location for c in model.graph.initializer if c.external_data}
    for location in sorted(locations):
        source = (data / location).resolve()
        if not source.is_relative_to(data.resolve()) or not source.is_file():
            raise UnsupportedModelError(
                f"the constants in {location!r} cannot be read",
                why=f"there is no such file in {data}",
                remedy="Put the file of constants beside the graph.",
            )
        link = folder / location
        link.parent.mkdir(parents=True, exist_ok=True)
        _link(source, link)
    path = folder / "graph.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _link(source: Path, link: Path) -> None:
    try:
        os.link(source, link)
    except OSError:  # another disk, or a file system without links
        try:
            link.symlink_to(source)
        except OSError:
            shutil.copyfile(source, link)


def with_raw_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a model in which every BF16 constant holds bytes; the model itself where all of them do.

    The model is not changed. ONNX allows the bits of BF16 in ``int32_data``, one number each.
    """
    if not any(map(_is_typed, _constants(model))):
        return model
    copy = deepcopy(model)
    for tensor in filter(_is_typed, _constants(copy)):
        tensor.raw_data = np.array(tensor.int32_data, np.uint16).astype("<u2").tobytes()
        del tensor.int32_data[:]
    return copy


def _is_typed(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.BFLOAT16 and len(tensor.int32_data) > 0


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    nodes = (*model.graph.node, *(node for function in model.functions for node in function.node))
    for graph in (model.graph, *(body for node in with_bodies(nodes) for body in bodies(node))):
        yield from graph.initializer
        yield from (constant.values for constant in graph.sparse_initializer)
    for attribute in (attribute for node in with_bodies(nodes) for attribute in node.attribute):
        yield attribute.t
        yield attribute.sparse_tensor.values
        yield from attribute.tensors
