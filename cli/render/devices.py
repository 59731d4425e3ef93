"""Devices: a list, or one in detail."""

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from .console import escape, stdout
from .table import Cell, Column, Table, TableFormat, facts_table, number
from .units import tflops

if TYPE_CHECKING:
    from campo_onnx.calibrate.catalog import CatalogEntry
    from campo_onnx.calibrate.knowledge import Knowledge
    from campo_onnx.hardware.hardware import Hardware
    from campo_onnx.runtime.api import Capabilities
    from campo_onnx.targets.detect import Here


def print_devices(devices: Sequence["Knowledge"], form: TableFormat = TableFormat.TEXT) -> None:
    """Print the devices to plan for, one per line."""

    def peak(title: str, precision: str, rank: int = 0) -> Column:
        key = f"{precision}_flops_per_s"
        return number(title, key, lambda entry: getattr(entry.target.hardware, key), tflops, rank=rank)

    table = Table(
        (
            Column("name", "name", lambda entry: entry.target.hardware.name),
            Column("device", "device", lambda entry: _short(entry.target.hardware.title), rank=2),
            peak("fp32", "fp32", rank=4),
            peak("tf32", "tf32", rank=5),
            peak("fp16 tensor", "fp16_tensor"),
            peak("bf16 tensor", "bf16_tensor"),
            number("memory", "memory_bandwidth_bytes_per_s", _bandwidth_cell, rank=3),
            Column("known by", "known_by", _known_by_cell, may_break=True),
        )
    ).fill(devices)
    table.show(form)
    if form is TableFormat.TEXT:
        stdout().print("`campo-onnx devices NAME` shows sources, assumptions and calibrations.", style="dim")


def print_machine(here: "Here") -> None:
    """Print what this machine has: processors, low-precision units, runtimes."""
    console = stdout()
    planned_as = f"planned for as {here.device}"
    console.print(escape(f"This machine: {here.cpu}, {here.cores} cores; {planned_as}."), soft_wrap=True)
    console.print(f"Low-precision units: {', '.join(here.units) or 'none'}.", soft_wrap=True)
    if here.gpu:
        console.print(escape(f"GPU: {here.gpu}."), soft_wrap=True)
    for runtime in here.runtimes:
        state = f"{runtime.name} {runtime.version}: {_traits(runtime.capabilities)}"
        console.print(escape(f"Runtime: {runtime.problem or state}"), soft_wrap=True)


def _traits(capabilities: "Capabilities") -> str:
    """Say what to expect of a runtime."""
    lows = "low precision" if capabilities.has_low_cpu_kernels else "FP32 kernels only"
    traits = [f"{lows} on CPUs"]
    traits += ["fuses Casts"] if capabilities.fuses_casts else []
    traits += [] if capabilities.keeps_nan else ["drops NaN in Relu and Max"]
    traits += [f"refuses {low.value}" for low, _ in capabilities.refused_precisions]
    return ", ".join(traits)


def print_device(device: "Knowledge") -> None:
    """Print one device in detail."""
    console, d = stdout(), device.target.hardware
    console.print(escape(f"{d.name}: {d.title}"), style="bold")
    rows = {
        "provider": d.processor,
        "compute capability": ".".join(map(str, d.compute_capability)) if d.compute_capability else "-",
        "multiprocessors" if d.is_gpu else "cores": str(d.sm_count),
        "last-level cache": f"{d.l2_bytes / 2**20:g} MiB",
        "memory bandwidth": _bandwidth(d),
        "fp32 peak": tflops(d.fp32_flops_per_s),
        "fp16 peak": tflops(d.fp16_flops_per_s),
        "tf32 tensor peak": tflops(d.tf32_flops_per_s),
        "fp16 tensor peak": tflops(d.fp16_tensor_flops_per_s),
        "bf16 tensor peak": tflops(d.bf16_tensor_flops_per_s),
        "from": d.source,
    }
    facts_table([*rows.items()])
    assumptions = []
    for name, assumed in device.target.assumptions.items():
        value = f"{assumed.value:.0%}"
        for suffix, unit in (("_us", "us"), ("_gb_per_s", "GB/s")):
            if name.endswith(suffix):
                name, value = name.removesuffix(suffix), f"{assumed.value:g} {unit}"
        assumptions.append((name.replace("_", " "), value, assumed.reason))
    what = Column("what", of=itemgetter(0))
    columns = (what, number("value", of=itemgetter(1)), Column("why", of=itemgetter(2), may_break=True))
    Table(columns, title="Assumptions (no datasheet states these)").fill(assumptions).show()
    if not device.calibrations:
        console.print("No calibration. Make one on such a device with `campo-onnx calibrate`.")
    for filed in device.calibrations:
        console.print(escape(f"Calibrated {_calibration(filed)}"), soft_wrap=True)
        machine = filed.calibration.machine
        console.print(escape(f"  on {machine.device}, in {filed.file}"), soft_wrap=True)
        if filed.refusal:
            console.print(escape(f"  not used: {filed.refusal}"), soft_wrap=True)
    if device.timings:
        console.print(f"Measured here: {device.timings:,} timings of single nodes in the store.")
    for problem in device.problems:
        console.print(escape(problem), soft_wrap=True)


def _bandwidth_cell(device: "Knowledge") -> Cell:
    hardware = device.target.hardware
    return Cell(_bandwidth(hardware), hardware.memory_bandwidth_bytes_per_s)


def _known_by_cell(device: "Knowledge") -> Cell:
    return Cell("\n".join(_known_by(device, in_full=False)), "; ".join(_known_by(device)))


def _known_by(device: "Knowledge", *, in_full: bool = True) -> list[str]:
    """Say what is known; in a table only of the user's own calibrations in full."""
    lines = [
        f"calibrated {_calibration(filed)}" + (", not used" if filed.refusal else "")
        if in_full or filed.origin.value == "here"
        else "calibrated"
        for filed in device.calibrations
    ]
    if device.problems:
        lines.append(f"{len(device.problems)} calibrations cannot be read")
    if device.timings:
        lines.append(f"measured here: {device.timings:,} timings")
    return lines or ["datasheet"]


def _calibration(filed: "CatalogEntry") -> str:
    calibration = filed.calibration
    score = calibration.score
    accuracy = "no operators" if score is None else f"M_A {score:.1%}, {calibration.operators} operators"
    return (
        f"{filed.origin.value} in {calibration.precision.value}: {accuracy}, {calibration.measured_at[:10]}, "
        f"{calibration.machine.software}"
    )


def _bandwidth(hardware: "Hardware") -> str:
    return f"{hardware.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s"


def _short(title: str) -> str:
    return title.partition(" (")[0].removeprefix("NVIDIA ").removeprefix("GeForce ")
