"""A graph whose constants lie in files of their own, as a file that OpenVINO can read."""

import os
import shutil
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo

from campo_onnx.errors import UnsupportedModelError


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
