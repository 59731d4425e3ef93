"""Calibrations that are found by the name of a device: those of this user, and those that are shipped."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from campo_onnx import files
from campo_onnx.calibrate.calibration import Calibration, load_calibration
from campo_onnx.hardware.datasheet import matching
from campo_onnx.measure.store import Execution
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import CPU, CUDA, DEFAULT, Machine, cores
from campo_onnx.runtime.registry import machine, runtime_called
from campo_onnx.targets.target import Target


class Origin(StrEnum):
    """Whose a calibration is."""

    HERE = "here"  # this user made it
    SHIPPED = "shipped"  # it comes with the program


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A calibration, and whether it is taken by itself."""

    calibration: Calibration
    origin: Origin
    file: str
    refusal: str = ""  # why it is not taken by itself


def user_folder() -> Path:
    """The default folder of calibrations, in the user's data folder."""
    return files.data_folder() / "calibrations"


def make_folder(folder: Path) -> None:
    """Make the folder for calibrations."""
    files.make_folder(folder, remedy="Name another place with --output, or set XDG_DATA_HOME.")


def shipped_folder() -> Traversable:
    """The folder of shipped calibrations; it need not exist."""
    return resources.files("campo_onnx.calibrate").joinpath("data", "calibrations")


def file_name(target: Target, precision: Precision, execution: Execution = Execution.STREAM) -> str:
    """Name of the calibration file of a target."""
    runtime = "" if target.runtime.name == DEFAULT else f"-{target.runtime.name}"
    captured = "-graph" if execution is Execution.GRAPH else ""
    return f"{target.name}{runtime}-{precision.value}{captured}.json"


def found_calibrations(
    target: Target, precision: Precision, *, shipped: Traversable | None = None
) -> Iterator[CatalogEntry]:
    """Yield the calibrations of a target whose nodes run one after another, this user's first.

    `shipped`: where shipped calibrations lie; None takes :func:`shipped_folder`.
    """
    name = file_name(target, precision)
    own = user_folder() / name
    if os.path.lexists(own):
        files.check_file(own, title=f"the calibration {own}", remedy="Remove the link.")
        calibration = load_calibration(own)
        refusal = _misfit(calibration, target.name) or calibration.doubt
        yield CatalogEntry(calibration=calibration, origin=Origin.HERE, file=str(own), refusal=refusal)
    file = (shipped or shipped_folder()).joinpath(name)
    if file.is_file():
        calibration = Calibration.from_json(file.read_bytes(), str(file))
        refusal = _other_cores(calibration.machine) or calibration.doubt
        yield CatalogEntry(calibration=calibration, origin=Origin.SHIPPED, file=str(file), refusal=refusal)


def _other_cores(machine: Machine) -> str:
    """Why a shipped calibration of a CPU does not hold here: its times are those of so many cores."""
    if machine.is_gpu or machine.threads == cores():
        return ""
    return f"the number of threads was {machine.threads} when it was made, and is {cores()} here"


def _misfit(calibration: Calibration, device: str) -> str:
    """Why a calibration of this user does not describe the device as it is here and now.

    The folder may be shared between machines. Of a device that is not here nothing can be said.
    """
    measured_on = calibration.machine
    runtime = runtime_called(measured_on.runtime)
    if problem := runtime.problem(CPU):
        return problem
    if calibration.hardware.name != device:
        return f"it is of {calibration.hardware.name}"
    if measured_on.is_gpu:
        if runtime.problem(CUDA):
            return ""
        here = machine(CUDA, runtime=measured_on.runtime)
        hardware = matching(here.device)
        if hardware is None or hardware.name != device:
            return ""
    else:
        here = machine(CPU, cores(), measured_on.runtime)
    for what, then, now in (
        ("the device", measured_on.device, here.device),
        (measured_on.software.rpartition(" ")[0], measured_on.ort, here.ort),
        ("CUDA", measured_on.cuda, here.cuda),
        ("TF32", measured_on.tf32, here.tf32),
        ("the number of threads", measured_on.threads, here.threads),
    ):
        if then != now:
            return f"{what} was {then} when it was made, and is {now} here"
    return ""
