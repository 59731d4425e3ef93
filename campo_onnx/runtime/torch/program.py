"""A graph translated to torch: traced at the sizes of its inputs, compiled when it is bound."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from numpy.typing import NDArray

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import AddressedProgram, LoadSettings, Place, StepTimes, Tensor
from campo_onnx.runtime.binding import refuse_missing, refuse_unknown
from campo_onnx.runtime.host_tensor import memory_at
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.timing import Step
from campo_onnx.runtime.torch.compiled import Runnable, runnable
from campo_onnx.runtime.torch.installed import installed_version, untested
from campo_onnx.runtime.torch.memory import GpuMemory, as_array, as_tensor, overlap
from campo_onnx.runtime.torch.precision import as_typed
from campo_onnx.runtime.torch.timed import step_times
from campo_onnx.runtime.torch.traced import Traced, trace
from campo_onnx.runtime.torch.translation import translate
from campo_onnx.runtime.torch.translation.values import dtype_of

_REMEMBERED = 16
"""Sets of addresses whose tensors are kept: allocators give the same few in turn."""

_WARMUP = 3
"""Steps before one is captured, in which libraries take their memory."""

Sizes = tuple[tuple[int, ...], ...]


class TorchProgram:
    """A loaded graph.

    UnsupportedModelError says that an operator is not translated, or that sizes depend on values. Graphs
    without static sizes are traced when they are bound.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        processor: str,
        *,
        threads: int,
        folder: Path | None,
        settings: LoadSettings,
    ) -> None:
        self._device = torch.device(processor, settings.device_id) if processor != CPU else torch.device(CPU)
        self._threads, self._settings = threads, settings
        self._translation = translate(model, folder, device=str(self._device))
        values = {value.name: value.type.tensor_type for value in model.graph.input}
        self._types = {
            name: dtype_of(values[name].elem_type, f"the input {name!r}") for name in self._translation.inputs
        }
        self._traced: dict[Sizes, Traced] = {}
        self._runnable: dict[Sizes, Runnable] = {}
        self._shapes = {name: _declared(values[name]) for name in self._translation.inputs}
        sizes = tuple(shape for shape in map(_static, self._shapes.values()) if shape is not None)
        if len(sizes) == len(self._shapes):
            self._graph(sizes)

    @property
    def note(self) -> str:
        """Say what is not compiled, and whether this release of torch is untested."""
        notes = [one.note for one in self._runnable.values()] + [untested(installed_version())]
        return "; ".join(dict.fromkeys(note for note in notes if note))

    @property
    def sources(self) -> tuple[str, ...]:
        """Programs that were generated, one for each set of sizes."""
        return tuple(one.source for one in self._runnable.values() if one.source)

    def bound(self, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor]) -> Step:
        """Bind inputs and outputs in their own memory; see :class:`~campo_onnx.runtime.api.Program`."""
        inputs = {name: self._memory(name, tensor) for name, tensor in reads.items()}
        outputs = {name: self._memory(name, tensor) for name, tensor in writes.items()}
        return self._bound(inputs, outputs)

    def placed(self, feeds: Mapping[str, NDArray[Any]]) -> Step:
        """Put arrays on the processor; results stay with the program."""
        return self._bound(self._put(feeds), {})

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> AddressedProgram:
        """Run on memory of the caller; see :class:`~campo_onnx.runtime.api.Program`."""
        refuse_missing("output", [place.name for place in writes], self._translation.outputs)
        for place in (*reads, *writes):
            if place.processor != CPU or self._device.type != CPU:
                raise UnsupportedModelError(
                    f"the tensor bound to {place.name!r} is not in the host's memory",
                    why="the torch runtime takes addresses of that alone",
                )
        types = {place.name: dtype_of(place.dtype, f"the tensor bound to {place.name!r}") for place in reads}
        self._runnable_on({p.name: torch.empty(p.shape, dtype=types[p.name]) for p in reads})
        return _Addressed(self._bound, reads, writes)

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it once on arrays; see :class:`~campo_onnx.runtime.api.Program`."""
        outputs: dict[str, torch.Tensor] = {}
        self._bound(self._put(feeds), outputs)()
        return {name: as_array(outputs[name]) for name in self._translation.outputs}

    def node_times(
        self,
        feeds: Mapping[str, NDArray[Any]],
        *,
        repeats: int,
        warmup: int = 2,
        on_step: Callable[[], None] | None = None,
    ) -> StepTimes:
        """Time each kernel, with the nodes that it computes; see :class:`~campo_onnx.runtime.api.Program`."""
        inputs = self._put(feeds)
        step = self._bound(inputs, {})
        kernels = self._runnable_on(inputs).kernels
        return step_times(step, kernels, self.executed(), repeats=repeats, warmup=warmup, on_step=on_step)

    def executed(self) -> Mapping[str, Precision]:
        """Precision in which products and convolutions are computed, by ONNX name."""
        return {name: low for traced in self._traced.values() for name, low in traced.computes.items()}

    def _graph(self, sizes: Sizes) -> Traced:
        if sizes not in self._traced:
            inputs = [
                torch.empty(shape, dtype=dtype, device=self._device)
                for shape, dtype in zip(sizes, self._types.values(), strict=True)
            ]
            self._traced[sizes] = trace(self._translation, inputs)
        return self._traced[sizes]

    def _runnable_on(self, inputs: Mapping[str, torch.Tensor]) -> Runnable:
        refuse_missing("input", inputs, self._translation.inputs)
        refuse_unknown("input", inputs, self._translation.inputs)
        ordered = [inputs[name] for name in self._translation.inputs]
        for (name, dtype), tensor in zip(self._types.items(), ordered, strict=True):
            _refuse_misfit(name, tensor, self._shapes[name], dtype)
        sizes: Sizes = tuple(tuple(tensor.shape) for tensor in ordered)
        if sizes not in self._runnable:
            traced = self._graph(sizes)
            with as_typed(self._threads, on_gpu=self._device.type != CPU):
                self._runnable[sizes] = runnable(
                    traced,
                    ordered,
                    threads=self._threads,
                    traces=self._settings.traces,
                    channels_last=self._settings.channels_last,
                )
        return self._runnable[sizes]

    def _bound(self, inputs: Mapping[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> Step:
        """Bind tensors, and allocate the outputs that are missing."""
        call = self._runnable_on(inputs).call
        refuse_unknown("output", outputs, self._translation.outputs)
        ordered = [inputs[name] for name in self._translation.inputs]
        expected = self._traced[tuple(tuple(tensor.shape) for tensor in ordered)].outputs
        written = []
        for name, like in zip(self._translation.outputs, expected, strict=True):
            if name in outputs:
                _refuse_misfit(name, outputs[name], tuple(like.shape), like.dtype)
            else:
                outputs[name] = torch.empty(like.shape, dtype=like.dtype, device=self._device)
            written.append(outputs[name])
        # Another result may be computed from an input after this one is written: it waits beside.
        beside = [torch.empty_like(tensor) if overlap(tensor, ordered) else tensor for tensor in written]
        waiting = [(to, now) for to, now in zip(written, beside, strict=True) if to is not now]

        def step() -> None:
            call(*ordered, *beside)
            for to, now in waiting:
                to.copy_(now)

        return self._on_gpu(step) if self._device.type != CPU else self._on_cpu(step)

    def _on_cpu(self, step: Callable[[], None]) -> Step:
        threads = self._threads

        def run() -> None:
            with as_typed(threads, on_gpu=False), torch.inference_mode(), _told():
                step()

        return run

    def _on_gpu(self, step: Callable[[], None]) -> Step:
        """Run on a stream, captured once if the settings say so. Not measured."""
        address = self._settings.stream
        stream = (
            torch.cuda.ExternalStream(address, device=self._device)
            if address
            else torch.cuda.Stream(self._device)
        )

        def once() -> None:
            stream.wait_stream(torch.cuda.current_stream(self._device))  # inputs may still be on their way
            with (
                as_typed(self._threads, on_gpu=True),
                torch.inference_mode(),
                torch.cuda.stream(stream),
                _told(),
            ):
                step()

        if not self._settings.captures:

            def run() -> None:
                once()
                stream.synchronize()

            return run
        for _ in range(_WARMUP):
            once()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            as_typed(self._threads, on_gpu=True),
            torch.inference_mode(),
            _told(),
            torch.cuda.graph(graph, stream=stream),
        ):
            step()

        def replay() -> None:
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                graph.replay()
            stream.synchronize()

        return replay

    def _put(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        return {name: as_tensor(array).to(self._device) for name, array in feeds.items()}

    def _memory(self, name: str, tensor: Tensor) -> torch.Tensor:
        if isinstance(tensor, GpuMemory) and self._device.type != CPU:
            return tensor.tensor
        array = tensor.shared()
        if array is None or self._device.type != CPU:
            raise UnsupportedModelError(
                f"the tensor bound to {name!r} is not in the memory of {self._device.type}",
                why="the torch runtime runs on that alone",
            )
        if not array.flags.writeable or not array.flags.c_contiguous:
            raise UnsupportedModelError(
                f"the tensor bound to {name!r} cannot be taken as it is",
                why="its memory is read-only, or its elements do not lie one after the other",
            )
        return as_tensor(array)


class _Addressed:
    """Runs a program on addresses, from any thread; one run at a time."""

    def __init__(
        self,
        bind: Callable[[Mapping[str, torch.Tensor], dict[str, torch.Tensor]], Step],
        reads: Sequence[Place],
        writes: Sequence[Place],
    ) -> None:
        self._bind, self._reads, self._writes = bind, reads, writes
        self._steps: OrderedDict[tuple[int, ...], Step] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        """Run the graph; see :class:`~campo_onnx.runtime.api.AddressedProgram`."""
        with self._lock:
            addresses = (*read_at, *written_at)
            if addresses not in self._steps:
                if len(self._steps) >= _REMEMBERED:
                    self._steps.popitem(last=False)
                inputs, outputs = _at(self._reads, read_at), _at(self._writes, written_at)
                self._steps[addresses] = self._bind(inputs, outputs)
            self._steps[addresses]()


def _at(places: Sequence[Place], addresses: Sequence[int]) -> dict[str, torch.Tensor]:
    return {
        place.name: as_tensor(memory_at(address, place.dtype, place.shape))
        for place, address in zip(places, addresses, strict=True)
    }


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, IndexError) as error:
        raise ModelError("the step fails while it runs", why=str(error).strip().partition("\n")[0]) from None


def _declared(value: onnx.TypeProto.Tensor) -> tuple[int | None, ...] | None:
    """Give the shape of an input, with None for a dimension that is not a number; None without a shape."""
    if not value.HasField("shape"):
        return None
    return tuple(size.dim_value if size.HasField("dim_value") else None for size in value.shape.dim)


def _static(shape: tuple[int | None, ...] | None) -> tuple[int, ...] | None:
    """Give a shape whose dimensions are all numbers."""
    sizes = () if shape is None else tuple(size for size in shape if size is not None)
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _refuse_misfit(
    name: str, tensor: torch.Tensor, shape: Sequence[int | None] | None, dtype: torch.dtype
) -> None:
    fits = shape is None or (
        len(shape) == tensor.ndim and all(d in (None, s) for d, s in zip(shape, tensor.shape, strict=True))
    )
    if not fits or tensor.dtype != dtype:
        raise UnsupportedModelError(
            f"the tensor bound to {name!r} does not fit",
            why=f"it is {_words(tensor.dtype, tensor.shape)}, and the graph has {_words(dtype, shape)}",
        )


def _words(dtype: torch.dtype, shape: Sequence[int | None] | None) -> str:
    sizes = "" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
    return f"{str(dtype).removeprefix('torch.')}{sizes}"
