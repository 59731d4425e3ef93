"""The result of a trial: steps measured in turns, gradients compared, and steps predicted elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass

from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.bench.statistics import paired_speedup
from campo_onnx.files.document_format import Format
from campo_onnx.wording import duration

EAGER = "torch"
AUTOCAST = "torch autocast"
COMPILED = "torch.compile"
COMPILED_AUTOCAST = "compile, autocast"
OURS = "ours, FP32"
MIXED = "ours, mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientError:
    """Difference between the gradients of a step and those of torch in FP32, on the same weights and batch.

    `worst` is the same of the single gradient that is furthest off. Gradients smaller than a thousandth of
    the largest count as that large: theirs is rounding.
    """

    name: str
    loss: float
    whole: float  # norm of the difference over the norm, of all gradients together
    worst: float
    parameter: str  # the parameter whose gradient that is; ``""`` where none differs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """A plan in numbers."""

    device: str
    title: str  # what people call the device
    low: str
    why: str  # that precision
    nodes: int
    low_nodes: int
    casts: int
    fp32_us: float
    predicted_us: float
    source: str  # of costs, a value of CostSource

    @property
    def speedup(self) -> float:
        """Predicted step in FP32 over the mixed one."""
        return self.fp32_us / self.predicted_us if self.predicted_us else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A training step as it runs on this machine, and as it is predicted to run on others.

    In a notebook it shows itself as a table and a picture.

    Parameters
    ----------
    measured
        Steps that took turns on this machine, torch's own first.
    gradients
        Gradients of each step beside torch's in FP32; empty where they are not comparable.
    plan, predictions
        The plan for this machine, and those for other devices.
    """

    name: str
    measured: BenchResult
    gradients: tuple[GradientError, ...]
    plan: PlanFacts
    predictions: tuple[PlanFacts, ...]
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result in a few sentences, each resting on a whole 95 % interval."""
        return tuple(_sentences(self))

    def speedup(self, name: str, over: str) -> Interval | None:
        """Speed-up of one measured step over another; None where one was not measured often enough."""
        samples = self.measured.samples_us
        if not (samples.get(name) and samples.get(over)):
            return None
        return paired_speedup(samples[over], samples[name], self.measured.rounds_per_run)

    def to_json(self) -> str:
        """Write everything as a JSON document."""
        return FORMAT.encode(self)

    def __str__(self) -> str:
        lines = [
            f"{row.name:<20} {'failed' if row.step_us is None else duration(row.step_us.median):>12}"
            for row in self.measured.rows
        ]
        return "\n".join((*lines, *self.sentences))

    def _repr_html_(self) -> str | None:
        """Show itself in a notebook; None, for plain text, where the packages of reports are missing."""
        from campo_onnx.integrations.trial.page import fragment

        return fragment(self)


FORMAT = Format(
    holds=Trial,
    noun="trial",
    kind="campo-onnx trial",
    version=1,
    remedy="Write one with: campo-onnx try train.py:make -o FILE",
)
"""Trials as files; :meth:`~campo_onnx.files.document_format.Format.load` reads them."""


def _sentences(trial: Trial) -> Iterator[str]:
    rows = [row for row in trial.measured.rows if row.step_us is not None and not row.failure]
    if not rows:
        return
    fastest = min(rows, key=lambda row: row.step_us.median if row.step_us else 0.0)
    speedup, once = fastest.speedup, fastest.verdict is Outcome.NOT_COMPARED
    is_ahead = once and speedup is not None and speedup.low > 1.0 + trial.measured.tolerance
    if speedup and fastest.step_us and (fastest.verdict is Outcome.FASTER or is_ahead):
        yield (
            f"The fastest step here is that of {fastest.name}: {duration(fastest.step_us.median)}, "
            f"{_times(speedup)} as fast as {EAGER}{' while loaded once' if once else ''}."
        )
    else:
        yield f"No step was measured to be faster than that of {EAGER}."
    by_name: dict[str, BenchRow] = {row.name: row for row in rows}
    if (autocast := by_name.get(AUTOCAST)) is not None and autocast.verdict is Outcome.SLOWER:
        yield "Autocast is slower than FP32 here: its casts cost more than low precision gains."
    gain = trial.speedup(MIXED, OURS)
    if gain is not None:
        yield f"Mixed precision makes our step {_times(gain)} as fast as ours in FP32."
        if (beside := trial.speedup(MIXED, AUTOCAST)) is not None:
            yield f"It is {_times(beside)} as fast as {AUTOCAST}."


def _times(interval: Interval) -> str:
    return f"{interval.median:.2f} times ({interval.low:.2f} to {interval.high:.2f})"
