"""A graph compiled by OpenVINO's CPU plugin: bound by position, run in the caller's memory."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from numpy.typing import NDArray

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.files import temporary_folder
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import AddressedProgram, Place, StepTimes, Tensor
from campo_onnx.runtime.binding import refuse_missing, refuse_unknown
from campo_onnx.runtime.machine import cpu_name
from campo_onnx.runtime.openvino.addresses import AddressedRequest, as_array, as_openvino
from campo_onnx.runtime.openvino.blobs import blob_folder
from campo_onnx.runtime.openvino.constants import with_raw_constants, write_beside
from campo_onnx.runtime.openvino.installed import ov
from campo_onnx.runtime.openvino.joining import crashes_joining
from campo_onnx.runtime.openvino.refusal import (
    not_compiled,
    refuse_empty,
    refuse_forms,
    refuse_open_windows,
    refuse_types,
    refused,
)
from campo_onnx.runtime.openvino.repairs import repair
from campo_onnx.runtime.openvino.trace import Names, executed_nodes, step_times
from campo_onnx.runtime.timing import Step

DEVICE = "CPU"
"""OpenVINO's name of the plugin."""

_TYPED = {
    "INFERENCE_PRECISION_HINT": "f32",  # by default it computes FP32 in BF16 where it can
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERFORMANCE_HINT": "LATENCY",
}
_JOINING, _UNJOINED = "TokenizeSnippets", {"SNIPPETS_MODE": "DISABLE"}
_CACHED_NODES = 200  # fewer compile in less time than a file takes


@cache
def core() -> Any:
    """Give the process' one ``ov.Core``.

    Each has a stack for signals, in the place of the one before, which it puts back when it ends: that of
    another core that ended earlier, if there were several, and then Ctrl-C ended the process.
    """
    return ov.Core()


class OpenVinoProgram:
    """A loaded graph.

    `traces` says whether nodes are to be timed, which costs up to 3 % of a step. UnsupportedModelError says
    that the plugin refuses the graph, or would not run it in the precisions that it is typed in;
    DeviceUnavailableError that it is of BF16 and the CPU has no units for it.
    """

    def __init__(
        self, model: onnx.ModelProto, *, threads: int, folder: Path | None, traces: bool = False
    ) -> None:
        self._core = core()
        refuse_types(model, self._core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"), cpu_name())
        constants = {constant.name for constant in model.graph.initializer}
        constants |= {constant.values.name for constant in model.graph.sparse_initializer}
        self._inputs = tuple(v.name for v in model.graph.input if v.name not in constants)
        self._outputs = tuple(v.name for v in model.graph.output)
        self._names = Names(model.graph)
        self._config = {**_TYPED, "INFERENCE_NUM_THREADS": threads, "PERF_COUNT": traces}
        if len(model.graph.node) >= _CACHED_NODES and (blobs := blob_folder()) is not None:
            self._config["CACHE_DIR"] = str(blobs)
        if crashes_joining(model.graph):
            self._config |= _UNJOINED
        self._graph = self._read(with_raw_constants(model), folder)
        refuse_forms(model, folder)
        self._program = self._compile()
        self._ports = self._positions()

    @property
    def note(self) -> str:
        """Nothing: the plugin runs every node itself."""
        return ""

    def bound(self, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor]) -> Step:
        """Bind inputs and outputs in their own memory; see :class:`~campo_onnx.runtime.api.Program`."""
        inputs = {name: _memory(name, tensor) for name, tensor in reads.items()}
        outputs = {name: _memory(name, tensor) for name, tensor in writes.items()}
        return self._step(inputs, outputs)[0]

    def placed(self, feeds: Mapping[str, NDArray[Any]]) -> Step:
        """Bind arrays as they are; results stay with the program."""
        return self._step(_contiguous(feeds), {})[0]

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> AddressedProgram:
        """Run on memory of the caller; see :class:`~campo_onnx.runtime.api.Program`."""
        for kind, places, expected in (("input", reads, self._inputs), ("output", writes, self._outputs)):
            names = [place.name for place in places]
            refuse_missing(kind, names, expected)
            refuse_unknown(kind, names, expected)
        outputs = {name: position for position, name in enumerate(self._outputs)}
        request = self._program.create_infer_request()
        return AddressedRequest(request, reads=_ports(reads, self._ports), writes=_ports(writes, outputs))

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it once on arrays and copy the outputs, by name."""
        step, request = self._step(_contiguous(feeds), {})
        step()
        return {name: as_array(request.get_output_tensor(k)) for k, name in enumerate(self._outputs)}

    def node_times(
        self,
        feeds: Mapping[str, NDArray[Any]],
        *,
        repeats: int,
        warmup: int = 2,
        on_step: Callable[[], None] | None = None,
    ) -> StepTimes:
        """Time each executed node; see :class:`~campo_onnx.runtime.api.Program`."""
        step, request = self._step(_contiguous(feeds), {})
        nodes = executed_nodes(self._program.get_runtime_model(), self._names)
        return step_times(
            nodes, step, request.get_profiling_info, repeats=repeats, warmup=warmup, on_step=on_step
        )

    def executed(self) -> Mapping[str, Precision]:
        """Precision in which products, convolutions, pooling and reductions are computed, by ONNX name."""
        return self._executed

    @cached_property
    def _executed(self) -> Mapping[str, Precision]:
        nodes = executed_nodes(self._program.get_runtime_model(), self._names)
        return {name: node.precision for node in nodes for name in node.computes if node.precision}

    def _read(self, model: onnx.ModelProto, folder: Path | None) -> Any:
        with ExitStack() as stack:
            source: bytes | Path
            if any(constant.external_data for constant in model.graph.initializer):
                source = write_beside(model, folder or Path(), stack.enter_context(temporary_folder()))
            else:
                source = _serialized(model)
            try:
                graph = self._core.read_model(source)
            except RuntimeError as error:
                raise refused(error) from None
        refuse_empty(model, graph)
        refuse_open_windows(graph)
        repair(graph)
        return graph

    def _compile(self) -> Any:
        try:
            program = self._compiled()
        except RuntimeError as error:
            raise not_compiled(error) from None
        hint = program.get_property("INFERENCE_PRECISION_HINT")
        if hint != ov.Type.f32:
            raise UnsupportedModelError(
                "OpenVINO would not run the graph as it is typed",
                why=f"it computes FP32 in {hint.get_type_name()} although told not to",
                remedy="Report it with the version of OpenVINO, and run on ONNX Runtime meanwhile.",
            )
        return program

    def _compiled(self) -> Any:
        try:
            return self._core.compile_model(self._graph, DEVICE, self._config)
        except RuntimeError as error:
            # The pass that joins element-wise nodes fails at some; a graph runs without it, if not as fast.
            if _JOINING not in str(error):
                raise
            return self._core.compile_model(self._graph, DEVICE, {**self._config, **_UNJOINED})

    def _positions(self) -> Mapping[str, int]:
        """Position of each input that something reads; the plugin drops the others.

        Ports take further names from Casts that are removed, but a parameter keeps its own.
        """
        ports = {port.get_node().get_friendly_name(): k for k, port in enumerate(self._program.inputs)}
        strange = sorted(set(ports) - set(self._inputs))
        if strange or len(self._program.outputs) != len(self._outputs):
            raise UnsupportedModelError(
                "OpenVINO changed the interface of the graph",
                why=f"inputs {strange} and {len(self._program.outputs)} outputs are not those of the file",
                remedy="Run it on ONNX Runtime (--runtime onnxruntime).",
            )
        return ports

    def _step(
        self, reads: Mapping[str, NDArray[Any]], writes: Mapping[str, NDArray[Any]]
    ) -> tuple[Step, Any]:
        """Bind arrays to a request of their own; a port that nobody sets would read what lies in memory."""
        refuse_missing("input", reads, self._inputs)
        refuse_unknown("input", reads, self._inputs)
        refuse_unknown("output", writes, self._outputs)
        request = self._program.create_infer_request()
        for name, position in self._ports.items():
            port = self._program.input(position)
            request.set_input_tensor(position, _fitting(name, reads[name], port))
        for name, array in writes.items():
            position = self._outputs.index(name)
            port = self._program.output(position)
            request.set_output_tensor(position, _fitting(name, array, port))

        def step(_alive: Any = (reads, writes, self)) -> None:  # BF16 tensors hold no reference to memory
            try:
                request.infer(share_outputs=True)  # by default every output is copied to a new array
            except RuntimeError as error:
                raise ModelError("the step fails while it runs", why=str(error).strip()) from None

        return step, request


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError):  # one for each implementation of protobuf
        raise UnsupportedModelError(
            "the graph is larger than 2 GB",
            why="no message of that size can be written",
            remedy="Save its constants beside it: onnx.save(model, path, save_as_external_data=True).",
        ) from None


def _memory(name: str, tensor: Tensor) -> NDArray[Any]:
    array = tensor.shared()
    if array is None:
        raise UnsupportedModelError(
            f"the tensor bound to {name!r} is not in the host's memory",
            why="OpenVINO's CPU plugin runs on that alone",
        )
    return array


def _contiguous(feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.require(array, requirements="C") for name, array in feeds.items()}


def _ports(places: Sequence[Place], positions: Mapping[str, int]) -> list[tuple[Place, int | None]]:
    return [(place, positions.get(place.name)) for place in places]


def _fitting(name: str, array: NDArray[Any], port: Any) -> Any:
    """Take an array for a port, or say that type or shape differ: some of it would be cast silently."""
    try:
        tensor = as_openvino(array)
    except RuntimeError as error:
        raise UnsupportedModelError(f"{name!r} cannot be bound", why=str(error).strip()) from None
    if tensor.element_type != port.element_type or not port.partial_shape.compatible(
        ov.PartialShape(list(array.shape))
    ):
        raise UnsupportedModelError(
            f"the tensor bound to {name!r} does not fit",
            why=f"it is {tensor.element_type.get_type_name()}{list(array.shape)}, and the graph has "
            f"{port.element_type.get_type_name()}{port.partial_shape}",
        )
    return tensor
