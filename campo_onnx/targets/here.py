"""A few facts on this machine: its processors, their low-precision units, and the runtimes on it."""

from dataclasses import dataclass

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.hardware.processor import UNITS, this_processor
from campo_onnx.runtime.api import Capabilities
from campo_onnx.runtime.gpu import visible_gpu
from campo_onnx.runtime.machine import CPU, cores, cpu_name
from campo_onnx.runtime.registry import runtimes
from campo_onnx.targets.detect import cpu_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledRuntime:
    """A runtime as it is on this machine."""

    name: str
    version: str  # empty if it cannot be used
    problem: str  # empty also where only loading it would tell
    capabilities: Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Facts on this machine."""

    cpu: str
    cores: int
    device: str  # the device file of the CPU; one of ROUGH_CPUS if none describes it
    units: tuple[str, ...]  # instruction sets with low-precision products
    gpu: str  # the first; empty without one
    runtimes: tuple[InstalledRuntime, ...]


def this_machine() -> Here:
    """Describe this machine."""
    processor, gpu = this_processor(), visible_gpu().gpu
    features = processor.features if processor is not None else frozenset[str]()
    installed = []
    for runtime in runtimes():
        version = runtime.installed
        problem = "" if version else runtime.problem(CPU)
        try:
            version = version or ("" if problem else runtime.version)
        except DeviceUnavailableError as error:
            version, problem = "", str(error)
        installed.append(
            InstalledRuntime(
                name=runtime.name, version=version, problem=problem, capabilities=runtime.capabilities
            )
        )
    return Here(
        cpu=cpu_name(),
        cores=cores(),
        device=cpu_figures(cores()).name,
        units=tuple(unit for unit in UNITS if unit in features),
        gpu="" if gpu is None else gpu.name,
        runtimes=tuple(installed),
    )
