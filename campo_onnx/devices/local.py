"""The figures of the device this process runs on."""

from dataclasses import replace

from campo_onnx.devices import datasheet, detect
from campo_onnx.devices.device import Device, DeviceKind
from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.runtime.providers import Machine


def device_of(machine: Machine) -> Device:
    """Find the figures of a machine.

    Caches and peaks only scale events and set the comparison with a roofline; no time comes from
    them.

    Raises
    ------
    DeviceUnavailableError
        If no figures are known for its GPU.
    """
    if machine.provider == "cpu":
        figures = datasheet.device("cpu")
        return replace(
            figures,
            title=machine.device,
            kind=DeviceKind.MEASURED,
            sm_count=machine.threads,
            source="this machine",
        )
    known = detect.matching(machine.device)
    if known is None:
        raise DeviceUnavailableError(
            f"no figures are known for this machine's {machine.device}",
            why="its cores and caches are needed to describe what was measured",
            remedy="Add it to campo_onnx/devices/data/datasheets.toml, from its data sheet.",
        )
    return replace(known, kind=DeviceKind.MEASURED, source="this machine")
