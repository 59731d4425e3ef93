"""A calibration: everything learned about one device, in one readable file that can be shipped."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.calibrate.fit import OpModel, TimeModel
from campo_onnx.devices.device import Device, DeviceKind, Efficiency
from campo_onnx.errors import ProfileError, UsageError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.providers import Machine

FORMAT_VERSION = 1
"""Version of the file; raised when a reader of the old one would misread the new one."""

_KIND = "campo-onnx calibration"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """M_A (Eq. 3) on shapes kept out of the fit.

    Parameters
    ----------
    shapes
        How many there were.
    chosen
        Of the model in use.
    by_method
        Of every way of fitting, ``paper`` among them.
    general
        Of one model for all operators.
    roofline
        Of the estimate from the device's figures.
    fp32
        Of the FP32 time predicted from shapes.
    with_counters
        Of the model that reads hardware counters, too; None without one.
    """

    shapes: int
    chosen: float
    by_method: Mapping[str, float]
    general: float
    roofline: float
    fp32: float
    with_counters: float | None = None


@dataclass(frozen=True, kw_only=True)
class OpEntry:
    """What is known about one operator.

    Parameters
    ----------
    op
        Its label.
    on_tensor_cores
        Whether this is its model for nodes that tensor cores take.
    method
        How the model was fitted: the way that did best in cross-validation.
    model
        Low-precision time from FP32 time (Eq. 2).
    time
        FP32 time from shapes.
    fitted
        Shapes it was fitted to.
    scores
        How good it is.
    with_counters
        Low-precision time from FP32 time for nodes whose hardware counters are known, too; None where
        they could not be read for every shape.
    """

    op: str
    on_tensor_cores: bool
    method: str
    model: OpModel
    time: TimeModel
    fitted: int
    scores: Scores
    with_counters: OpModel | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Cost models of one device in one precision.

    Parameters
    ----------
    machine
        Where and with what software it was measured.
    device
        Figures of the device.
    precision
        The low precision.
    execution
        ``"stream"`` or ``"graph"``.
    cast, cast_score
        Eq. 1, and its M_A on sizes kept out of the fit.
    cast_paper_score
        M_A of Eq. 1 fitted as in the paper, to microseconds instead of shares.
    host_us
        Time of a node that only renames bytes.
    entries
        By operator, and by whether tensor cores take the node.
    general, general_time
        Models for operators that have none of their own.
    failures
        Operators that could not be measured, with the reason.
    measured_at
        When, in UTC.
    counters_refusal
        Why there are no hardware counters where they were asked for.
    """

    machine: Machine
    device: Device
    precision: Precision
    execution: str
    cast: CastModel
    cast_score: float
    cast_paper_score: float
    host_us: float
    entries: tuple[OpEntry, ...]
    general: OpModel
    general_time: TimeModel
    failures: Mapping[str, str]
    measured_at: str
    counters_refusal: str = ""

    @property
    def score(self) -> float:
        """M_A over all held-out shapes of all operators."""
        return self.mean(lambda scores: scores.chosen)

    @property
    def operators(self) -> int:
        """How many operators have a model of their own."""
        return len({entry.op for entry in self.entries})

    def mean(self, pick: Any) -> float:
        """Mean of one figure of the scores over all held-out shapes."""
        shapes = sum(entry.scores.shapes for entry in self.entries)
        return sum(entry.scores.shapes * float(pick(entry.scores)) for entry in self.entries) / shapes

    def to_json(self) -> str:
        """The calibration as text: one model a line, so that two of them can be compared."""
        facts = asdict(self)
        facts["precision"] = self.precision.value
        facts["device"]["kind"] = self.device.kind.value
        entries, failures = facts.pop("entries"), facts.pop("failures")
        head = json.dumps({"kind": _KIND, "format_version": FORMAT_VERSION, **facts}, indent=1)
        rows = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
        tail = json.dumps(failures, indent=1).replace("\n", "\n ")
        return f'{head[:-2]},\n "entries": [\n{rows}\n ],\n "failures": {tail}\n}}\n'

    @classmethod
    def from_json(cls, text: str, title: str = "the calibration") -> "Calibration":
        """Read :meth:`to_json` back.

        Raises
        ------
        ProfileError
            If it is no calibration, damaged, or of a newer version.
        """
        try:
            facts = json.loads(text)
            if not isinstance(facts, dict) or facts.pop("kind", None) != _KIND:
                raise ProfileError(f"{title} is no calibration of campo-onnx", remedy=_REMEDY)
            if facts.pop("format_version") > FORMAT_VERSION:
                raise ProfileError(f"{title} was written by a newer campo-onnx", remedy="Update campo-onnx.")
            return cls(
                **{
                    **facts,
                    "machine": Machine(**facts["machine"]),
                    "device": _device(facts["device"]),
                    "precision": Precision(facts["precision"]),
                    "cast": CastModel(**facts["cast"]),
                    "entries": tuple(_entry(row) for row in facts["entries"]),
                    "general": _op_model(facts["general"]),
                    "general_time": _time_model(facts["general_time"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"{title} cannot be read", why=str(error), remedy=_REMEDY) from None


_REMEDY = "Make it again with campo-onnx calibrate."


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises
    ------
    UsageError
        If it does not exist or may not be read.
    ProfileError
        If it is no calibration, damaged, or of a newer version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProfileError(
            f"{path} is no calibration of campo-onnx", why="it is no text", remedy=_REMEDY
        ) from None
    except OSError as error:
        raise UsageError(f"the calibration {path} cannot be read", why=error.strerror or str(error)) from None
    return Calibration.from_json(text, str(path))


def _device(facts: Mapping[str, Any]) -> Device:
    capability = facts["compute_capability"]
    return Device(
        **{
            **facts,
            "kind": DeviceKind(facts["kind"]),
            "compute_capability": tuple(capability) if capability else None,
            "efficiency": Efficiency(**facts["efficiency"]),
        }
    )


def _entry(row: Mapping[str, Any]) -> OpEntry:
    return OpEntry(
        **{
            **row,
            "model": _op_model(row["model"]),
            "time": _time_model(row["time"]),
            "scores": Scores(**row["scores"]),
            "with_counters": _op_model(row["with_counters"]) if row.get("with_counters") else None,
        }
    )


def _op_model(row: Mapping[str, Any]) -> OpModel:
    ratios = row["ratios"]
    return OpModel(
        features=tuple(row["features"]),
        weights=tuple(row["weights"]),
        sigma_us=row["sigma_us"],
        ratios=tuple(ratios) if ratios else None,
    )


def _time_model(row: Mapping[str, Any]) -> TimeModel:
    return TimeModel(
        features=tuple(row["features"]), weights=tuple(row["weights"]), constant_us=row["constant_us"]
    )
