"""A loaded graph as a :class:`~campo_onnx.runtime.api.Program`."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.files import temporary_folder
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LoadSettings, Place, StepTimes, Tensor
from campo_onnx.runtime.host_tensor import HostTensor, has_fixed_size, numpy_type
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.onnxruntime.addresses import AddressedSession
from campo_onnx.runtime.onnxruntime.gpu_tensor import GpuTensor
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.sessions import (
    RUNTIME_ERRORS,
    assignments,
    failed_run,
    first_line,
    open_session,
    placed_elsewhere,
)
from campo_onnx.runtime.onnxruntime.traces import affordable_steps, times_of
from campo_onnx.runtime.timing import Step

BoundTensor: TypeAlias = HostTensor | GpuTensor

_NUMPYS_OWN = 1  # what `dtype.isbuiltin` is of types that no other package adds
_TYPES = {
    f"tensor({name})": getattr(TensorProto, dtype)
    for name, dtype in (
        *(("float", "FLOAT"), ("float16", "FLOAT16"), ("bfloat16", "BFLOAT16"), ("double", "DOUBLE")),
        *((f"{u}int{bits}", f"{u}int{bits}".upper()) for u in ("", "u") for bits in (8, 16, 32, 64)),
        ("bool", "BOOL"),
    )
}


class OnnxProgram:
    """A graph in a session of its own, which runs it node by node as it is written.

    Arguments are as for :meth:`~campo_onnx.runtime.api.Runtime.load`. `trace_to` is the prefix of the profile
    file, where the caller reads that itself.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        processor: str,
        threads: int,
        folder: Path | None,
        settings: LoadSettings,
        *,
        trace_to: Path | None = None,
    ) -> None:
        self._processor, self._settings, self._nodes = processor, settings, len(model.graph.node)
        self._captured = 0  # bindings whose launches are captured, each in a CUDA graph of its own
        self._workshop = temporary_folder() if settings.traces else None
        if self._workshop is not None:
            trace_to = self._workshop.__enter__() / "trace"
        self.session = open_session(
            model, processor, threads=threads, folder=folder, settings=settings, trace_to=trace_to
        )

    @property
    def note(self) -> str:
        """Say which nodes run elsewhere."""
        elsewhere = placed_elsewhere(assignments(self.session), self._processor)
        if not elsewhere:
            return ""
        return (
            f"{len(elsewhere)} nodes run on another provider than {self._processor} or copy between "
            f"providers, the first is {elsewhere[0].node!r} ({elsewhere[0].op_type})"
        )

    def bound(self, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor]) -> Step:
        """Bind tensors, and return what runs one step on them."""
        inputs, outputs = _own(reads), _own(writes)
        self._check(inputs, outputs)
        binding = self.session.io_binding()
        try:
            for name, tensor in inputs.items():
                binding.bind_input(name, *self._place_of(tensor))
            for output in self.session.get_outputs():
                if output.name not in outputs and (room := self._fixed(output)) is not None:
                    outputs[output.name] = room
                if output.name in outputs:
                    binding.bind_output(output.name, *self._place_of(outputs[output.name]))
                else:
                    binding.bind_output(output.name, self._processor)
            binding.synchronize_inputs()  # copies may go on after the calls that began them
        except RUNTIME_ERRORS as error:
            raise _cannot_take(error) from None
        return self._step(binding, (inputs, outputs))

    def placed(self, feeds: Mapping[str, NDArray[Any]]) -> Step:
        """Put inputs on the processor once, and return what runs one step on them."""
        return self.bound({name: self._place(array) for name, array in feeds.items()}, {})

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> AddressedSession:
        """Run on memory of the caller."""
        return AddressedSession(self.session, reads, writes)

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it once on arrays, and return the outputs by name."""
        outputs = self.session.get_outputs()
        names = [output.name for output in outputs]
        try:
            values_of_a_run = (*self.session.get_inputs(), *outputs)
            is_plain = all(v.type.startswith("tensor(") and "string" not in v.type for v in values_of_a_run)
            if not is_plain:
                return dict(zip(names, self.session.run(names, dict(feeds)), strict=True))
            values = self.session.run_with_ort_values(
                names, {name: ort_value(array) for name, array in feeds.items()}
            )
            arrays = {name: _array_of(value) for name, value in zip(names, values, strict=True)}
            # An output that is an input is the caller's memory, which its value keeps no hold of.
            return arrays | {name: np.array(feeds[name]) for name in arrays.keys() & feeds.keys()}
        except RUNTIME_ERRORS as error:
            raise failed_run(error) from None

    def node_times(
        self,
        feeds: Mapping[str, NDArray[Any]],
        *,
        repeats: int,
        warmup: int = 2,
        on_step: Callable[[], None] | None = None,
    ) -> StepTimes:
        """Time each node of repeated steps; the program cannot be run any more afterwards."""
        if self._workshop is None:
            raise ValueError("the program was not loaded with settings.traces")
        try:
            steps = affordable_steps(repeats, warmup, self._nodes)
            return times_of(self.session, self.placed(feeds), steps=steps, warmup=warmup, on_step=on_step)
        finally:
            self._workshop.__exit__(None, None, None)

    def executed(self) -> Mapping[str, Precision]:
        """Nothing: nodes run in the types of the graph, where a kernel takes them."""
        return {}

    def _place_of(self, tensor: BoundTensor) -> tuple[str, int, int, tuple[int, ...], int]:
        """Device name of a tensor, as bindings take it."""
        return (tensor.processor, self._settings.device_id, tensor.dtype, tensor.shape, tensor.address)

    def _place(self, array: NDArray[Any]) -> BoundTensor:
        if self._processor == CPU:
            return HostTensor.sharing(array)
        tensor = GpuTensor.zeros(array.shape, int(helper.np_dtype_to_tensor_dtype(array.dtype)))
        tensor.write(array)
        return tensor

    def _fixed(self, output: Any) -> BoundTensor | None:
        """Memory at a fixed address, which CUDA graphs need, where the size of an output is static."""
        dtype = _TYPES.get(output.type)
        if dtype is None or not all(isinstance(size, int) for size in output.shape):
            return None
        return zeros(output.shape, int(dtype), self._processor)

    def _check(self, reads: Mapping[str, BoundTensor], writes: Mapping[str, BoundTensor]) -> None:
        inputs = {value.name: value for value in self.session.get_inputs()}
        outputs = {value.name: value for value in self.session.get_outputs()}
        faults = [f"no tensor for the input {name!r}" for name in inputs if name not in reads]
        for kind, tensors, values in (("input", reads, inputs), ("output", writes, outputs)):
            for name, tensor in tensors.items():
                if name not in values:
                    faults.append(f"unknown {kind} {name!r}")
                elif not _fits(tensor, values[name]):
                    faults.append(
                        f"the {kind} {name!r} is {values[name].type} {values[name].shape}, the tensor "
                        f"{TensorProto.DataType.Name(tensor.dtype)} {list(tensor.shape)}"
                    )
        if faults:
            raise UnsupportedModelError(
                "ONNX Runtime cannot take the graph's inputs and outputs", why="; ".join(faults)
            )

    def _step(self, binding: Any, alive: Any) -> Step:
        # Without a graph's number in options ONNX Runtime raises and catches an exception at each run: 60 us.
        options = None
        if self._settings.captures:
            self._captured += 1  # a captured graph keeps its addresses
            options = ort.RunOptions()
            options.add_run_config_entry("gpu_graph_id", str(self._captured))
        session = self.session

        def step(_alive: Any = alive) -> None:
            try:
                session.run_with_iobinding(binding, options)
            except RUNTIME_ERRORS as error:
                raise failed_run(error) from None

        return step


def zeros(shape: Sequence[int], dtype: int, processor: str) -> BoundTensor:
    """Allocate a tensor of zeros."""
    return (HostTensor if processor == CPU else GpuTensor).zeros(shape, dtype)


def _own(tensors: Mapping[str, Tensor]) -> dict[str, BoundTensor]:
    own = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, BoundTensor)}
    if others := [name for name in tensors if name not in own]:
        raise UnsupportedModelError(
            "ONNX Runtime cannot take the graph's inputs and outputs",
            why=f"the tensor of {others[0]!r} is another runtime's",
        )
    return own


def _fits(tensor: BoundTensor, value: Any) -> bool:
    if _TYPES.get(value.type) not in (None, tensor.dtype):
        return False
    sizes = zip(value.shape, tensor.shape, strict=False)
    return len(value.shape) == len(tensor.shape) and all(
        not isinstance(declared, int) or declared == size for declared, size in sizes
    )


def ort_value(array: NDArray[Any]) -> Any:
    """Take an array as a value of a CPU, bfloat16 included; the array stays the memory of it."""
    dtype = helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
    if dtype != TensorProto.BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.asarray(array, order="C").view(np.uint16), int(dtype)
    )


def _array_of(value: Any) -> NDArray[Any]:
    """Return a CPU value as an array on its memory; copy types that NumPy lacks, such as bfloat16."""
    if not has_fixed_size(value.element_type()):
        return np.array(value.numpy())
    dtype = numpy_type(value.element_type())
    is_shared = dtype.isbuiltin == _NUMPYS_OWN
    array: NDArray[Any] = value.numpy() if is_shared else np.empty(value.shape(), dtype)
    if array.size and not is_shared:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def _cannot_take(error: Exception) -> UnsupportedModelError:  # the device's memory is full, for one
    return UnsupportedModelError(
        "ONNX Runtime cannot take the graph's inputs and outputs", why=first_line(error)
    )
