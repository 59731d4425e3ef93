"""A calibration: everything learned about one target, in one readable file that can be shipped."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from campo_onnx.calibrate.in_step import InStep
from campo_onnx.calibrate.op_model import TIME, OpModel, TimeModel
from campo_onnx.errors import ProfileError
from campo_onnx.files.codec import Document
from campo_onnx.files.document_format import Format
from campo_onnx.hardware.hardware import Hardware
from campo_onnx.measure.events import EVENTS, STATIC_EVENTS
from campo_onnx.measure.store import Execution
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import Target

LEAST_ACCURACY = 0.7
"""M_A (1 minus the mean relative error on held-out shapes) below which a calibration is not taken by itself.

Low precision halves the time of a node that only moves memory. Where predictions of both precisions are
off by 30 % on average, it is no longer clear which of the two is faster.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """M_A (Eq. 3) on shapes kept out of the fit."""

    shapes: int
    chosen: float
    by_method: Mapping[str, float]
    general: float  # of one model for all operators
    roofline: float
    fp32: float
    with_counters: float | None = None  # of the model that reads hardware counters, too; None without one

    def __post_init__(self) -> None:
        """Refuse scores of nothing; make the mapping read-only."""
        if self.shapes < 1:
            raise ValueError(f"scores need at least one held-out shape, and shapes is {self.shapes}")
        object.__setattr__(self, "by_method", MappingProxyType(dict(self.by_method)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEntry:
    """Models and samples of one operator."""

    op: str
    on_tensor_cores: bool
    method: str
    model: OpModel  # low-precision time from FP32 time (Eq. 2)
    time: TimeModel
    fitted: int
    scores: Scores
    # Low-precision time from FP32 time for nodes whose hardware counters are known, too; None where they
    # could not be read for every shape.
    with_counters: OpModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Cost models of one target in one precision."""

    machine: Machine
    hardware: Hardware
    precision: Precision
    execution: Execution
    # cast, cast_score: Eq. 1, and its M_A on sizes kept out of the fit.
    cast: CastModel
    cast_score: float
    cast_paper_score: float  # M_A of Eq. 1 fitted as in the paper, to microseconds instead of shares
    host_us: float  # time of a node that only renames bytes
    entries: tuple[OpEntry, ...]  # by operator, and by whether tensor cores take the node
    # general, general_time: models for operators that have none of their own.
    general: OpModel
    general_time: TimeModel
    failures: Mapping[str, str]
    measured_at: str  # when its last timing was taken (UTC, ISO 8601), not when it was fitted
    counters_refusal: str = ""
    # What nodes take in a step, where that is not what they take alone; None where no steps were measured.
    in_step: InStep | None = None

    def __post_init__(self) -> None:
        """Refuse what no measurement gives; make the mapping read-only."""
        if not (math.isfinite(self.host_us) and self.host_us >= 0):
            raise ValueError(f"host_us is {self.host_us}, and must be a time")
        _check_events([*(entry.time for entry in self.entries), self.general_time], STATIC_EVENTS)
        _check_events([*(entry.model for entry in self.entries), self.general], (*EVENTS, TIME))
        object.__setattr__(self, "failures", MappingProxyType(dict(self.failures)))

    @property
    def target(self) -> Target:
        """The target that it describes."""
        target = Target.of(self.hardware, self.machine.runtime)
        return target.captured if self.execution is Execution.GRAPH else target

    @property
    def score(self) -> float | None:
        """M_A over all held-out shapes of all operators; None where no operator has a model of its own."""
        return self.mean(lambda scores: scores.chosen)

    @property
    def doubt(self) -> str:
        """Why it is too poor to decide by; ``""`` when it is not."""
        score = self.score
        what, figure = "operators", score
        if score is None or self.cast_score < LEAST_ACCURACY <= score:
            what, figure = "Casts", self.cast_score
        if figure is None or figure >= LEAST_ACCURACY:
            return ""
        return (
            f"M_A of its {what} on held-out shapes is {figure:.1%}, and {LEAST_ACCURACY:.0%} is needed to "
            "decide by; measure more shapes on an idle machine"
        )

    @property
    def operators(self) -> int:
        """Number of operators with a model of their own."""
        return len({entry.op for entry in self.entries})

    def mean(self, pick: Callable[[Scores], float]) -> float | None:
        """Mean of one figure of the scores over all held-out shapes; None where there are none."""
        if not self.entries:
            return None
        shapes = sum(entry.scores.shapes for entry in self.entries)
        if shapes <= 0:
            return None
        return sum(entry.scores.shapes * pick(entry.scores) for entry in self.entries) / shapes

    def to_json(self) -> str:
        """The calibration as text: one model a line, so that two of them can be compared."""
        return FORMAT.encode(self)

    @classmethod
    def from_json(cls, text: str | bytes, title: str = "the calibration") -> "Calibration":
        """Read :meth:`to_json` back."""
        return FORMAT.decode(text, title)


def _check_events(models: Sequence[OpModel | TimeModel], names: Sequence[str]) -> None:
    for name in (name for model in models for name in model.features):
        if name not in names:
            raise ValueError(f"unknown event {name!r}")


def _of_version_1(document: Document) -> Document:
    """Take of a device what is its hardware; what its runtime adds comes from the runtime's folder."""
    device = {name: value for name, value in document.pop("device").items() if name not in _OF_RUNTIMES}
    return {**document, "hardware": {"processor": device.pop("provider"), **device}}


_OF_RUNTIMES = frozenset({"kind", "tf32_default", "launch_us", "host_us", "captures", "runtime"})

FORMAT = Format(
    holds=Calibration,
    noun="calibration",
    kind="campo-onnx calibration",
    version=2,
    rows=("entries",),
    older={1: _of_version_1},
    error=ProfileError,
    remedy="Make it again with campo-onnx calibrate.",
)
"""The file."""


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file."""
    return FORMAT.load(path)
