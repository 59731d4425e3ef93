"""Which device this machine has, and which to plan for when the user names none."""

from dataclasses import replace
from typing import TYPE_CHECKING

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.hardware import datasheet
from campo_onnx.hardware.device import Device, DeviceKind
from campo_onnx.runtime.gpu import visible_gpu
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import AUTO, runtime_called

if TYPE_CHECKING:
    from campo_onnx.runtime.machine import Machine

FALLBACK = "h200"
"""Planned for where no GPU of known figures is in the machine."""


def resolve_device(name: str, runtime: str = AUTO) -> tuple[Device, str]:
    """Find the device called `name`, with a runtime on it.

    Parameters
    ----------
    name
        Name of a device, or ``"auto"``.
    runtime
        Name of a runtime, or ``"auto"``.

    Returns
    -------
    Device
        The device.
    str
        What to tell the user about the choice; ``""`` when it was theirs.

    Raises
    ------
    UsageError
        If there is no device, or no runtime, of that name.
    """
    chosen = runtime_called(runtime)
    if name == "auto" and chosen.name != DEFAULT and chosen.problem("cuda"):
        return datasheet.device("cpu").in_runtime(runtime), f"Planning for a CPU, where {chosen.name} runs."
    found, note = _found(name)
    return found.in_runtime(runtime), note


def _found(name: str) -> tuple[Device, str]:
    if name != "auto":
        return datasheet.device(name), ""
    instead = f"planning for {FALLBACK}; choose with --device"
    visible = visible_gpu()
    if visible.gpu is None:
        return datasheet.device(FALLBACK), f"No GPU here, {instead}: {visible.problem}."
    found = visible.gpu.name
    match = datasheet.matching(found)
    if match is None:
        return datasheet.device(FALLBACK), f"{_unknown(found)}: {instead}."
    return match, f"Planning for this machine's {found}."


def device_of(machine: "Machine") -> Device:
    """Find the figures of a machine.

    Caches and peaks only scale events and set the comparison with a roofline; no time comes from
    them.

    Raises
    ------
    DeviceUnavailableError
        If no figures are known for its GPU.
    """
    if machine.provider == "cpu":
        return replace(
            datasheet.device("cpu"),
            runtime=machine.runtime,
            title=machine.device,
            kind=DeviceKind.MEASURED,
            sm_count=machine.threads,
            source="this machine",
        )
    known = datasheet.matching(machine.device)
    if known is None:
        raise DeviceUnavailableError(
            _unknown(machine.device),
            why="cores and caches are needed to describe what was measured",
            remedy="Add a file to campo_onnx/hardware/data, from its data sheet.",
        )
    return replace(known, runtime=machine.runtime, kind=DeviceKind.MEASURED, source="this machine")


def _unknown(gpu: str) -> str:
    near = datasheet.closest(gpu)
    others = f" (closest: {', '.join(near)}, whose figures differ)" if near else ""
    return f"No figures are known for this machine's {gpu}{others}"
