"""How well each device is known: public figures, calibrations, timings taken here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from campo_onnx.calibrate.catalog import Found, found_calibrations
from campo_onnx.codec import to_plain
from campo_onnx.errors import CampoError
from campo_onnx.hardware.datasheet import Assumption, assumptions, devices, matching
from campo_onnx.hardware.device import Device
from campo_onnx.measure.store import Store
from campo_onnx.ops.precision import low_precisions
from campo_onnx.runtime.machine import cpu_name
from campo_onnx.runtime.registry import runtimes

FORMAT_VERSION = 1
"""Version of the JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of one device.

    Parameters
    ----------
    device
        Its public figures.
    assumptions
        Figures that no data sheet states.
    calibrations
        Those that are found by its name.
    timings
        Single nodes that were timed on it and are in the store.
    problems
        Calibrations that are there and cannot be read.
    """

    device: Device
    assumptions: tuple[Assumption, ...]
    calibrations: tuple[Found, ...]
    timings: int
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values; of calibrations, what they are and how good."""
        return {
            **to_plain(self.device),
            "assumptions": to_plain(self.assumptions),
            "calibrations": [_calibration_facts(found) for found in self.calibrations],
            "timings": self.timings,
            "problems": list(self.problems),
        }


def known_devices(store: Store | None) -> Iterator[Knowledge]:
    """Yield what is known of every device.

    Parameters
    ----------
    store
        Timings that were taken; None when there is no store.
    """
    timed = store.timed_devices() if store is not None else {}
    timings: dict[str, int] = {}
    for (provider, title), count in timed.items():
        if provider == "cpu":
            name = "cpu" if title == cpu_name() else ""
        else:
            match = matching(title)
            name = match.name if match is not None else ""
        timings[name] = timings.get(name, 0) + count
    for device in devices().values():
        calibrations, problems = _calibrations(device.name)
        yield Knowledge(
            device=device,
            assumptions=assumptions(device.name),
            calibrations=calibrations,
            timings=timings.get(device.name, 0),
            problems=problems,
        )


def _calibrations(name: str) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    found: list[Found] = []
    problems = []
    for precision in low_precisions():
        try:
            for runtime in runtimes():
                found += found_calibrations(name, precision, runtime=runtime.name)
        except CampoError as error:  # one bad file hides no other device
            problems.append(str(error))
    return tuple(found), tuple(problems)


def _calibration_facts(found: Found) -> dict[str, Any]:
    calibration = found.calibration
    return {
        "precision": calibration.precision.value,
        "origin": found.origin.value,
        "file": found.file,
        "refusal": found.refusal,
        "model_accuracy": calibration.score,
        "operators": calibration.operators,
        "measured_at": calibration.measured_at,
        "machine": to_plain(calibration.machine),
    }
