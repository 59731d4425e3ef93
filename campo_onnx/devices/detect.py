"""Which device to plan for when the user names none."""

import shutil
import subprocess

from campo_onnx.devices.datasheet import device as datasheet_device
from campo_onnx.devices.datasheet import devices
from campo_onnx.devices.device import Device

FALLBACK = "h200"
"""Planned for where no GPU of known figures is in the machine."""

_TIMEOUT_S = 10


def resolve_device(name: str) -> tuple[Device, str]:
    """Find the device called `name`.

    Parameters
    ----------
    name
        Name of a device, or ``"auto"``.

    Returns
    -------
    Device
        The device.
    str
        What to tell the user about the choice; ``""`` when it was theirs.

    Raises
    ------
    UsageError
        If there is no device of that name.
    """
    if name != "auto":
        return datasheet_device(name), ""
    found = gpu_name()
    if found is None:
        note = f"No GPU here: planning for {FALLBACK}. Choose with --device."
        return datasheet_device(FALLBACK), note
    match = matching(found)
    if match is None:
        note = f"No figures for this machine's {found}: planning for {FALLBACK}. Choose with --device."
        return datasheet_device(FALLBACK), note
    return match, f"Planning for this machine's {found}."


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU of this machine, or None."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return next(iter(answer.stdout.splitlines()), "").strip() or None


def matching(gpu: str) -> Device | None:
    """Match what the driver calls a GPU (``NVIDIA A100-SXM4-40GB``) to a device.

    Examples
    --------
    >>> matching("Tesla V100-SXM2-16GB").name
    'v100'
    """
    words = gpu.lower().replace("-", " ").replace("geforce ", "").split()
    joined = "".join(words)
    for device in devices().values():
        if device.provider == "cuda" and (device.name in words or device.name in joined):
            return device
    return None
