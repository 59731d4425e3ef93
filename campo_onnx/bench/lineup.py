"""All graphs made ready: loaded, bound, run once; those that fail are told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from campo_onnx.bench.contender import Buffers, open_contender
from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.memory import MemoryGauge
from campo_onnx.bench.subject import Subject
from campo_onnx.errors import CampoError
from campo_onnx.runtime.providers import Machine
from campo_onnx.runtime.sessions import RUNTIME_ERRORS
from campo_onnx.runtime.timing import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """Graphs ready to take steps.

    Parameters
    ----------
    steps
        What takes one step and waits for its end, by graph; a graph is taken out when it fails.
    peak_bytes
        Memory of a step by graph, inputs and outputs included, where it could be told.
    failures
        Why the others could not be loaded, or not take their first step.
    remarks
        On nodes that run elsewhere than asked for.
    """

    steps: dict[str, Step] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def line_up(
    subjects: Sequence[Subject],
    buffers: Buffers,
    machine: Machine,
    gauge: MemoryGauge,
    *,
    cuda_graph: bool,
) -> Lineup:
    """Load every graph and let it take its first step, in which it reserves its memory."""
    steps: dict[str, Step] = {}
    peak_bytes: dict[str, int] = {}
    failures: dict[str, Failure] = {}
    remarks: list[str] = []
    for subject in subjects:
        before_bytes = gauge.read()
        try:
            step, remark = open_contender(subject, buffers, machine, cuda_graph=cuda_graph)
            step()
        except (CampoError, MemoryError, *RUNTIME_ERRORS) as error:
            failures[subject.name] = failure_of(error)
            continue
        steps[subject.name] = step
        if (grown_bytes := gauge.growth(before_bytes)) is not None:
            peak_bytes[subject.name] = buffers.nbytes + grown_bytes
        if remark:
            remarks.append(f"{subject.name}: {remark}")
    return Lineup(steps=steps, peak_bytes=peak_bytes, failures=failures, remarks=tuple(remarks))
