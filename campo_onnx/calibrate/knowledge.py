"""Sources for each device: public figures, calibrations, timings taken here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from campo_onnx.calibrate.catalog import CatalogEntry, found_calibrations
from campo_onnx.errors import CampoError
from campo_onnx.files.codec import to_plain
from campo_onnx.hardware.datasheet import ANY_CPU, devices, matching
from campo_onnx.hardware.hardware import Hardware
from campo_onnx.measure.store import Store
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.runtime.machine import CPU, cpu_name
from campo_onnx.runtime.registry import runtimes_for
from campo_onnx.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Sources for one device."""

    target: Target
    calibrations: tuple[CatalogEntry, ...]
    timings: int  # of single nodes on it, in the store
    problems: tuple[str, ...] = ()  # calibrations that are there and cannot be read

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values; of calibrations, what they are and how good."""
        return {
            **to_plain(self.target.hardware),
            "kind": "datasheet",
            "provider": self.target.hardware.processor,
            "launch_us": self.target.launch_us,
            "host_us": self.target.host_us,
            "tf32_default": self.target.tensor_flops_per_s(Precision.FP32) is not None,
            "captures": self.target.captures,
            "runtime": self.target.runtime.name,
            "assumptions": [
                {"name": name, **to_plain(assumed)} for name, assumed in self.target.assumptions.items()
            ],
            "calibrations": [_calibration_facts(filed) for filed in self.calibrations],
            "timings": self.timings,
            "problems": list(self.problems),
        }


def known_devices(store: Store | None) -> Iterator[Knowledge]:
    """Yield what is known of every device."""
    timed = store.timed_devices() if store is not None else {}
    timings: dict[str, int] = {}
    for (provider, title), count in timed.items():
        if provider == CPU:
            name = ANY_CPU if title == cpu_name() else ""
        else:
            match = matching(title)
            name = match.name if match is not None else ""
        timings[name] = timings.get(name, 0) + count
    for hardware in devices().values():
        calibrations, problems = _calibrations(hardware)
        yield Knowledge(
            target=Target.of(hardware),
            calibrations=calibrations,
            timings=timings.get(hardware.name, 0),
            problems=problems,
        )


def _calibrations(hardware: Hardware) -> tuple[tuple[CatalogEntry, ...], tuple[str, ...]]:
    calibrations: list[CatalogEntry] = []
    problems = []
    for precision in low_precisions():
        try:
            for runtime in runtimes_for(hardware.processor):
                calibrations += found_calibrations(Target.of(hardware, runtime), precision)
        except CampoError as error:  # one bad file hides no other device
            problems.append(str(error))
    return tuple(calibrations), tuple(problems)


def _calibration_facts(filed: CatalogEntry) -> dict[str, Any]:
    calibration = filed.calibration
    return {
        "precision": calibration.precision.value,
        "origin": filed.origin.value,
        "file": filed.file,
        "refusal": filed.refusal,
        "model_accuracy": calibration.score,
        "operators": calibration.operators,
        "measured_at": calibration.measured_at,
        "machine": to_plain(calibration.machine),
    }
