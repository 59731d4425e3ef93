"""The runtimes there are: each folder beside this file is a library's, and its ``runtime.py`` lists them."""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.hardware.hardware import PROCESSORS
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.runtime.api import LOAD_SETTINGS, LoadSettings, Program, Runtime, Tensor
from campo_onnx.runtime.machine import CPU, CUDA, DEFAULT, Machine

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

AUTO = "auto"
"""Takes the default runtime."""

_FURTHER: ContextVar[tuple[Runtime, ...]] = ContextVar("further_runtimes", default=())


def runtimes() -> tuple[Runtime, ...]:
    """List all runtimes, installed or not, the default first."""
    return (*_shipped(), *_FURTHER.get())


def runtimes_for(processor: str) -> tuple[Runtime, ...]:
    """List the runtimes that have kernels for a kind of processor, the default first."""
    return tuple(runtime for runtime in runtimes() if processor in runtime.processors)


def runtime_called(name: str) -> Runtime:
    """Look a runtime up by its name, or ``"auto"``."""
    wanted = DEFAULT if name == AUTO else name
    for runtime in runtimes():
        if runtime.name == wanted:
            return runtime
    names = ", ".join([AUTO, *(runtime.name for runtime in runtimes())])
    raise UsageError(f"unknown runtime {name!r}", remedy=f"Choose one of {names}.")


def processor_for(wanted: str, runtime: str = AUTO) -> str:
    """Turn ``auto``, ``cpu`` or ``cuda`` into a processor that a runtime runs on here."""
    chosen = runtime_called(runtime)
    if wanted == AUTO:
        return CPU if chosen.problem(CUDA) else CUDA
    if wanted not in PROCESSORS:
        raise UsageError(f"unknown provider {wanted!r}", remedy="Choose auto, cpu or cuda.")
    if wanted not in (CPU, CUDA):
        raise DeviceUnavailableError(
            f"nothing runs on {wanted} here",
            why=runtimes_for(wanted)[0].problem(wanted),
            remedy="Take predictions: --costs datasheet.",
        )
    if wanted == CUDA and (why := chosen.problem(CUDA)):
        if chosen.name == DEFAULT:
            raise DeviceUnavailableError(
                "the CUDA provider cannot be used",
                why=why,
                remedy="Install onnxruntime-gpu and CUDA's and cuDNN's libraries (pip's or PyTorch's), or "
                "choose --device cpu.",
            )
        raise DeviceUnavailableError(f"{chosen.name} cannot use CUDA", why=why, remedy="Choose --device cpu.")
    return wanted


def default_precision(runtime: str = AUTO) -> Precision:
    """Choose the low precision of a runtime where the user names none.

    It is its own usual one, or the first that it does not refuse.
    """
    capabilities = runtime_called(runtime).capabilities
    return capabilities.usual_precision or next(
        low for low in low_precisions() if not capabilities.refusal(low)
    )


def check_precision(precision: Precision, runtime: str = AUTO) -> None:
    """Refuse a low precision in which nothing may be planned for a runtime."""
    chosen = runtime_called(runtime)
    if why := chosen.capabilities.refusal(precision):
        instead = default_precision(runtime).value
        raise UsageError(
            f"{chosen.name} does not compute in {precision.value}",
            why=why,
            remedy=f"Choose {instead}: --precision {instead}, or low=Precision.{instead.upper()}.",
        )


def machine(processor: str, threads: int = 0, runtime: str = AUTO) -> Machine:
    """Identify this machine, with the runtime on it."""
    return runtime_called(runtime).machine(processor, threads)


def load(
    model: "onnx.ModelProto",
    machine: Machine,
    *,
    folder: Path | None = None,
    settings: LoadSettings = LOAD_SETTINGS,
) -> Program:
    """Load a graph on a machine, by the machine's runtime; see :meth:`Runtime.load`.

    Inputs that are initializers as well need not be given.
    """
    from campo_onnx.ir.constants import defaults_of
    from campo_onnx.ir.convert import with_conversions
    from campo_onnx.runtime.defaults import ProgramWithDefaults, without_defaults

    model = with_conversions(model, folder)
    stored = defaults_of(model, folder)
    # Nothing can be given in types that NumPy lacks, as BF16: these stay where they are.
    defaults = {name: value for name, value in stored.items() if value.dtype.kind != "V"}
    if defaults:
        model = without_defaults(model, defaults)
    load_here = runtime_called(machine.runtime).load
    program = load_here(model, machine.provider, threads=machine.threads, folder=folder, settings=settings)
    if not defaults:
        return program
    return ProgramWithDefaults(program, defaults, lambda array: tensor_of(array, machine))


def tensor(shape: tuple[int, ...], dtype: int, machine: Machine) -> Tensor:
    """Allocate a tensor of zeros on a machine; see :meth:`Runtime.tensor`."""
    return runtime_called(machine.runtime).tensor(shape, dtype, machine.provider)


def tensor_of(array: "NDArray[Any]", machine: Machine) -> Tensor:
    """Copy an array to a machine."""
    from onnx import helper

    dtype = int(helper.np_dtype_to_tensor_dtype(array.dtype))
    copy = tensor(array.shape, dtype, machine)
    copy.write(array)
    return copy


@contextmanager
def temporary_runtime(runtime: Runtime) -> Iterator[None]:
    """Register one more runtime meanwhile."""
    token = _FURTHER.set((*_FURTHER.get(), runtime))
    try:
        yield
    finally:
        _FURTHER.reset(token)


@cache
def _shipped() -> tuple[Runtime, ...]:
    folders = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.ispkg]
    folders.sort(key=lambda name: (name != DEFAULT, name))
    return tuple(r for name in folders for r in import_module(f"{__package__}.{name}.runtime").RUNTIMES)
