"""Times of torch's own kernels on this machine, FP32 and low, measured once and kept in the user's cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from campo_onnx.files import cache_folder
from campo_onnx.integrations.inductor.library import CONVOLUTIONS, LIBRARY, tensors_of
from campo_onnx.measure.store import Store, TimingKey
from campo_onnx.runtime.machine import CPU, Machine, cpu_name
from campo_onnx.runtime.timing import Timing, timing_of

TORCH = "torch"
"""Name of the runtime whose kernels these are."""

_ROUNDS, _LEAST, _BUDGET_S = 40, 5, 0.05
"""Runs of each kernel that count, at most and at least, and the time after which no more begin."""

_CAST = torch.ops.aten._to_copy.default


class Pair(NamedTuple):
    """Times of one kernel."""

    fp32_us: float
    low_us: float


class Times(Protocol):
    """Tells what kernels and casts cost."""

    def kernel(self, node: torch.fx.Node, dtype: torch.dtype, *, channels_last: bool) -> Pair:
        """Say how long a library kernel takes in FP32 and low, at the sizes and strides of its operands."""

    def cast_us(self, elements: int, device: torch.device, dtype: torch.dtype) -> float:
        """Say how long it takes to read so many FP32 numbers and write them low."""


class Clock(Protocol):
    """Gives times."""

    @property
    def identity(self) -> str:
        """Text that tells its times from those of another machine, other software, or made up."""

    def opened(self) -> AbstractContextManager[Times]:
        """Open what the times are kept in."""


class MeasuredClock:
    """Times as measured here, those of an earlier process if there are any.

    `path`: the file of timings; by default one in the user's cache folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = cache_folder() / "torch-kernels.sqlite" if path is None else path

    @property
    def identity(self) -> str:
        """The software and processors whose kernels would be measured."""
        devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        return "; ".join(str(_machine(torch.device(device))) for device in devices)

    @contextmanager
    def opened(self) -> Iterator[Times]:
        """Open the file."""
        with Store(self._path) as store:
            yield _MeasuredTimes(store)


class _MeasuredTimes:
    """Times that are looked up, or measured and filed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def kernel(self, node: torch.fx.Node, dtype: torch.dtype, *, channels_last: bool) -> Pair:
        """Look up or measure a kernel in both types, in turns."""
        is_last = channels_last and node.target in CONVOLUTIONS
        calls = [_Call.of(node, low, is_last) for low in (torch.float32, dtype)]
        device = next(t.device for n in node.all_input_nodes for t in tensors_of(n))
        fp32, low = self._timed(calls, device)
        return Pair(fp32.median_us, low.median_us)

    def cast_us(self, elements: int, device: torch.device, dtype: torch.dtype) -> float:
        """Look up or measure a cast of the next power of two, and scale."""
        measured = 1 << max(elements - 1, 0).bit_length()
        operand = _Operand((measured,), (1,), torch.float32, str(device))
        (timing,) = self._timed([_Call(_CAST, (operand,), {"dtype": dtype})], device)
        return timing.median_us * elements / measured

    def _timed(self, calls: Sequence["_Call"], device: torch.device) -> list[Timing]:
        machine = _machine(device)
        keys = [TimingKey(machine=machine, signature=call.signature) for call in calls]
        filed = [timing for key in keys if (timing := self._store.find(key)) is not None]
        if len(filed) == len(keys):
            return filed
        # The compiler that asks has its own fake tensors in force.
        with _disable_current_modes(), torch.no_grad():
            timings = _measured([call.runner() for call in calls], device)
        for key, timing in zip(keys, timings, strict=True):
            self._store.add(key, timing)
        return timings


class _Operand(NamedTuple):
    """A tensor, or a number that was a symbol when it was traced."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, node: torch.fx.Node, fp32_as: torch.dtype, channels_last: bool) -> Any:
        """Describe what a node gave when it was traced, FP32 as another type."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return hint(value)
        shape, strides = hints(value.shape), hints(value.stride())
        if channels_last and len(shape) in (4, 5):
            strides = _channels_last(shape)
        dtype = fp32_as if value.dtype == torch.float32 else value.dtype
        return cls(shape, strides, dtype, str(value.device))

    def made(self) -> torch.Tensor:
        """Make such a tensor: random numbers, as zeros may take other paths and denormal ones are slow."""
        generator = torch.Generator(self.device).manual_seed(0)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return tensor.uniform_(-1, 1, generator=generator) if tensor.is_floating_point() else tensor.zero_()


class _Call(NamedTuple):
    """A call of an operation."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, node: torch.fx.Node, dtype: torch.dtype, channels_last: bool) -> "_Call":
        """Describe a library kernel that computes in some type."""
        stays = LIBRARY[node.target]

        def described(place: int | str, argument: Any) -> Any:
            fp32_as = torch.float32 if place in stays else dtype
            return map_arg(argument, lambda n: _Operand.of(n, fp32_as, channels_last))

        args = tuple(described(i, a) for i, a in enumerate(node.args))
        return cls(node.target, args, {k: described(k, a) for k, a in node.kwargs.items()})

    @property
    def signature(self) -> str:
        """The operation with its operands, as text."""
        return f"{self.target}{self.args}{sorted(self.kwargs.items())}"

    def runner(self) -> Callable[[], Any]:
        """Make operands; give what calls the operation on them."""
        args, kwargs = _with_tensors((self.args, self.kwargs))
        return lambda: self.target(*args, **kwargs)


def _with_tensors(value: Any) -> Any:
    if isinstance(value, _Operand):
        return value.made()
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(part) for part in value)
    if isinstance(value, dict):
        return {key: _with_tensors(part) for key, part in value.items()}
    return value


def hint(number: Any) -> int:
    """Give the number that a size had when it was traced."""
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """Give the numbers that sizes had when they were traced."""
    return tuple(map(hint, numbers))


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    like = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(shape, device="meta", memory_format=like).stride()


def _machine(device: torch.device) -> Machine:
    is_cpu = device.type == CPU
    return Machine(
        provider=device.type,
        device=cpu_name() if is_cpu else torch.cuda.get_device_name(device),
        driver="",
        cuda="" if is_cpu else str(torch.version.cuda),
        ort=str(torch.__version__),
        tf32=torch.get_float32_matmul_precision() != "highest",
        threads=torch.get_num_threads() if is_cpu else 0,
        runtime=TORCH,
    )


def _measured(runners: Sequence[Callable[[], Any]], device: torch.device) -> list[Timing]:
    """Time some calls in turns; the fastest quarter of each counts: other programs only make one slower."""
    time_us = _cpu_us if device.type == CPU else _cuda_us
    for run in runners:
        time_us(run)
    rounds: list[list[float]] = []
    end = perf_counter_ns() + _BUDGET_S * 1e9 * len(runners)
    while len(rounds) < _ROUNDS and (len(rounds) < _LEAST or perf_counter_ns() < end):
        rounds.append([time_us(run) for run in runners])
    return [timing_of(sorted(samples)[: (len(samples) + 3) // 4]) for samples in zip(*rounds, strict=True)]


def _cpu_us(run: Callable[[], Any]) -> float:
    """Time a call; of one thread that computes alone it is known how long others kept it waiting."""
    now = thread_time_ns if torch.get_num_threads() == 1 else perf_counter_ns
    began = now()
    run()
    return (now() - began) / 1000


def _cuda_us(run: Callable[[], Any]) -> float:
    """Time a call by events on the stream; nothing of this was run on a GPU yet."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000
