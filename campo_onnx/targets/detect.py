"""The target that this machine is, the one to plan for when the user names none, and a few facts on it."""

from dataclasses import dataclass, replace

from campo_onnx.errors import DeviceMismatchError, DeviceUnavailableError
from campo_onnx.hardware import datasheet
from campo_onnx.hardware.datasheet import ANY_CPU, ROUGH_CPUS
from campo_onnx.hardware.hardware import Hardware
from campo_onnx.hardware.processor import UNITS, this_processor
from campo_onnx.ops.precision import low_precisions
from campo_onnx.runtime.api import Capabilities
from campo_onnx.runtime.gpu import visible_gpu
from campo_onnx.runtime.machine import CPU, CUDA, Machine, cores, cpu_name
from campo_onnx.runtime.registry import AUTO, machine, processor_for, runtime_called, runtimes, runtimes_for
from campo_onnx.targets.target import Target

FALLBACK = "h200"
"""Planned for where no GPU of known figures is in the machine."""

_ANY_GPU = "v100"
"""Stands for a GPU without figures where only the runtime's kernels count."""


def resolve_target(name: str, runtime: str = AUTO) -> tuple[Target, str]:
    """Find the device called `name`, with a runtime on it; each may be ``"auto"``.

    Also gives what to tell the user about the choice; ``""`` when it was theirs. Raises UsageError if there
    is no device, or no runtime, of that name.
    """
    chosen = runtime_called(runtime)
    if name == AUTO and chosen.capabilities.has_low_cpu_kernels and chosen.problem(CUDA):
        here = this_cpu(chosen.name)
        where = f"where {chosen.name} runs"
        if here.name in ROUGH_CPUS:
            note = f"Planning for {here.name}, {where}: no figures of this machine's {cpu_name()} are known."
        else:
            count = here.hardware.sm_count
            note = f"Planning for this machine's {cpu_name()}, {count} cores of {here.name}, {where}."
        return here, note
    hardware, note = _named(name)
    if not hardware.is_gpu and (here := this_cpu(chosen.name)).name == name:
        return here, ""
    return Target.of(hardware, runtime), note


def this_cpu(runtime: str, threads: int = 0) -> Target:
    """Describe this machine's CPU to plans, by the figures of its kind or, if unknown, of a rough server CPU.

    For a runtime that computes in FP32 on every CPU it is always the rough one, so that one file of timings
    serves all.

    `threads`: cores that count; 0 takes all that this process may use.
    """
    chosen = runtime_called(runtime)
    is_told_apart = chosen.capabilities.has_low_cpu_kernels
    return Target.of(cpu_figures(threads or cores()) if is_told_apart else datasheet.device(ANY_CPU), chosen)


def cpu_with_low_precision() -> Target | None:
    """Find this machine's CPU with an installed runtime that computes in a low precision on it."""
    for runtime in runtimes_for(CPU):
        if not runtime.capabilities.is_chosen_unasked or runtime.problem(CPU):
            continue
        here = this_cpu(runtime.name)
        if any(map(here.computes_in, low_precisions())):
            return here
    return None


def cpu_figures(threads: int) -> Hardware:
    """Find the figures of this machine's CPU, for as many cores, or those of a rough one with such units."""
    processor = this_processor()
    if processor is None:
        return datasheet.device(ANY_CPU)
    return datasheet.matching_processor(processor, threads) or datasheet.rough_processor(
        processor.features, threads
    )


def _named(name: str) -> tuple[Hardware, str]:
    if name != AUTO:
        return datasheet.device(name), ""
    instead = f"planning for {FALLBACK}; choose with --device"
    visible = visible_gpu()
    if visible.gpu is None:
        return datasheet.device(FALLBACK), f"No GPU here, {instead}: {visible.problem}."
    gpu_name = visible.gpu.name
    match = datasheet.matching(gpu_name)
    if match is None:
        return datasheet.device(FALLBACK), f"{_unknown(gpu_name)}: {instead}."
    return match, f"Planning for this machine's {gpu_name}."


def target_of(measured: Machine) -> Target:
    """Describe a machine, by the figures of its processor.

    Caches and peaks only scale events and set the comparison with a roofline; no time comes from
    them.
    """
    if not measured.is_gpu:
        here = this_cpu(measured.runtime, measured.threads)
        return replace(
            here,
            hardware=replace(
                here.hardware, title=measured.device, sm_count=measured.threads, source="this machine"
            ),
        )
    hardware = datasheet.matching(measured.device)
    if hardware is None:
        raise DeviceUnavailableError(
            _unknown(measured.device),
            why="cores and caches are needed to describe what was measured",
            remedy="Add a file to campo_onnx/hardware/data, from its data sheet.",
        )
    return Target.of(replace(hardware, source="this machine"), measured.runtime)


def is_here(target: Target) -> bool:
    """Whether this machine is, or has, the device, with a provider that loads."""
    try:
        machine_of(target)
    except (DeviceUnavailableError, DeviceMismatchError):
        return False
    return True


def machine_of(target: Target, threads: int = 0) -> Machine:
    """Identify this machine, which must have the device."""
    name = target.runtime.name
    here = machine(processor_for(target.hardware.processor, name), threads, name)
    is_gpu = target.hardware.is_gpu
    own = datasheet.matching(here.device) if is_gpu else target_of(here).hardware
    is_any_cpu = not is_gpu and (target.name in ROUGH_CPUS or target.name not in datasheet.devices())
    if is_any_cpu or (own is not None and own.name == target.name):
        return here
    raise DeviceMismatchError(
        f"{target.name} cannot be measured here",
        why=f"this machine has {here.device}" + (f", which is planned for as {own.name}" if own else ""),
        remedy="Measure on that device, or take --costs model or datasheet.",
    )


def target_or_any_gpu(measured: Machine) -> Target:
    """Describe a machine; a GPU without figures gets those of another, as kernels are the same."""
    if measured.is_gpu and datasheet.matching(measured.device) is None:
        return Target.of(datasheet.device(_ANY_GPU), measured.runtime)
    return target_of(measured)


def _unknown(gpu: str) -> str:
    near = datasheet.closest(gpu)
    others = f" (closest: {', '.join(near)}, whose figures differ)" if near else ""
    return f"No figures are known for this machine's {gpu}{others}"


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
