"""Running a graph once, and values that stay on a device between runs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import Machine
from campo_onnx.runtime.onnxruntime.sessions import RUNTIME_ERRORS, open_session

_MOST_ELEMENTS = 1 << 48
"""Of a tensor; more bytes than this no processor addresses."""


def run(
    model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]], machine: Machine, *, folder: Path | None = None
) -> dict[str, NDArray[Any]]:
    """Run a graph once, node by node as it is written.

    Parameters
    ----------
    model
        The graph.
    feeds
        A value for every input.
    machine
        Where to run it.
    folder
        Folder of the model's external data.

    Returns
    -------
    dict
        Outputs by name.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime cannot load the graph.
    ModelError
        If it fails to run it.
    """
    session = open_session(model, machine, folder=folder, strict=False, holds_memory=False)
    names = [output.name for output in session.get_outputs()]
    try:
        values = session.run(names, dict(feeds))
    except RUNTIME_ERRORS as error:
        raise ModelError("the graph fails while it runs", why=str(error).strip()) from None
    return dict(zip(names, values, strict=True))


def on_device(array: NDArray[Any], machine: Machine) -> ort.OrtValue:
    """Copy an array to the device."""
    # On a CPU the value would share the array's memory, and a step writes into its state.
    return ort.OrtValue.ortvalue_from_numpy(np.array(array, order="C"), machine.provider, 0)


def empty_on_device(shape: Sequence[int], dtype: int, machine: Machine) -> ort.OrtValue:
    """Make room on the device for a tensor of a ``TensorProto.DataType``.

    Raises
    ------
    UnsupportedModelError
        If it has more elements than can be addressed; ONNX Runtime would write a line of its own as well.
    """
    if math.prod(shape) > _MOST_ELEMENTS:
        raise UnsupportedModelError(
            f"an input or output of shape {list(shape)} fits into no memory",
            remedy="Export the step for a batch of the size that is trained with.",
        )
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), int(dtype), machine.provider, 0)


def from_device(value: ort.OrtValue) -> NDArray[Any]:
    """Copy a value back from the device."""
    return np.array(value.numpy())


def run_bound(session: ort.InferenceSession, binding: ort.IOBinding, cuda_graph: int | None = None) -> None:
    """Run one step on bound values.

    Parameters
    ----------
    session, binding
        A loaded graph, and where its inputs and outputs lie.
    cuda_graph
        Which of the session's CUDA graphs to capture or replay; a binding with other addresses
        needs one of its own. None launches node by node.

    Raises
    ------
    ModelError
        If a node fails.
    """
    # Without a graph's number in options ONNX Runtime raises and catches an exception at each run: 60 us.
    options = None
    if cuda_graph is not None:
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(cuda_graph))
    try:
        session.run_with_iobinding(binding, options)
    except RUNTIME_ERRORS as error:
        raise ModelError("the training step fails while it runs", why=str(error).strip()) from None
