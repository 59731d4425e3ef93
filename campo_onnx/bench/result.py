"""The result of a benchmark: one row per graph, and every single time."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from campo_onnx.files.codec import Document
from campo_onnx.files.document_format import Format
from campo_onnx.runtime.machine import Machine


class Outcome(StrEnum):
    """Comparison of a graph with the first one."""

    BASELINE = "baseline"
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    NOT_COMPARED = "not compared"  # the first graph failed, or too few rounds were taken
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with its confidence interval.

    From `low` to `high` is the 95 % confidence interval, widened to the median of every run; with fewer than
    six samples their range, which covers less.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One graph."""

    name: str
    # time of one step; for a graph that failed, over the rounds before. None if there were none.
    step_us: Interval | None
    # step of the first graph over that of this one, paired round by round. None for the first and wherever
    # nothing was compared.
    speedup: Interval | None
    verdict: Outcome
    samples_per_s: float | None = None
    energy_j: Interval | None = None
    # memory that a step was seen to need, its inputs and outputs included: what ONNX Runtime's arena holds
    peak_bytes: int | None = None
    tensor_pipe_share: float | None = None
    # kernels of the graph, and what they read and write in memory, counted
    # (`campo_onnx.optimize.traffic.traffic`)
    launches: int | None = None
    moved_bytes: float | None = None
    # most memory that its tensors take at a time, counted likewise, with nothing computed in place
    alive_bytes: float | None = None
    failure: str = ""
    failure_code: int = 0  # the exit code documented for it; 0 if nothing went wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Everything a benchmark measured."""

    machine: Machine
    rows: tuple[BenchRow, ...]
    steps: int  # timed rounds: steps of every graph that did not fail
    measured_at: str  # when it ended (UTC, ISO 8601)
    # time of every step by graph, in the order of rounds: the n-th times of two graphs are a pair
    samples_us: Mapping[str, tuple[float, ...]]
    # speed-ups within this of 1 count as no difference; very short steps need more (see `notes`)
    tolerance: float
    rounds_per_run: tuple[int, ...] = ()  # rounds of each run; the graphs are loaded anew for every run
    batch: int | None = None
    interrupted: bool = False
    energy_from: str = ""
    memory_from: str = ""
    # clock of the GPU's multiprocessors after every round, warm-up included, where it can be read
    sm_clock_mhz: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write everything as a JSON document."""
        return FORMAT.encode(self)


def _runs_named(document: Document) -> Document:
    """Version 1 called the runs starts."""
    return {"rounds_per_run" if key == "starts" else key: value for key, value in document.items()}


FORMAT = Format(
    holds=BenchResult,
    noun="benchmark result",
    kind="campo-onnx benchmark",
    version=3,
    kind_since=3,
    older={1: _runs_named, 2: dict},
    remedy="Write one with: campo-onnx bench STEP.onnx MIXED.onnx -o FILE",
)
"""Results as files; :meth:`~campo_onnx.files.document_format.Format.load` reads them."""
