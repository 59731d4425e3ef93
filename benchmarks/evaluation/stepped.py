"""Measured training steps, interleaved: of every strategy's graph, and of every peer's."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation.strategies import FP32, PADDING, STRATEGIES, TF_AMP, decided, options_for
from benchmarks.steps import Deadline
from campo_onnx import Options, Plan, Target, oplists, optimize_model
from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.result import Outcome
from campo_onnx.bench.statistics import paired_speedup
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.runtime.machine import Machine

FIRST = (FP32, TF_AMP)
"""The first graphs of every group: the two that speed-ups refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A graph to be measured."""

    labels: tuple[str, ...]  # strategies that decide alike share a graph
    imported: Imported
    casts: int | None  # None for a peer's, which are counted elsewhere
    predicted_us: float | None  # by the costs that the plan was made with; None for a peer's


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure a group of graphs: rounds, and the time after which none is begun."""

    steps: int
    budget_s: float
    cuda_graph: bool = False
    energy: bool = True


def candidates(
    graph: Path, planned_for: Target, labels: Collection[str], calibrated: Path | None = None
) -> tuple[Candidate, ...]:
    """Let the strategies plan a graph, and write their graphs; equal ones once.

    A strategy that pads comes with padding off as well, where it pads at all.
    """
    by_decisions: dict[tuple[object, ...], Candidate] = {}
    for label, plan, imported in _planned(graph, options_for(planned_for, calibrated), labels):
        new = Candidate(labels=(), imported=imported, casts=len(plan.casts), predicted_us=plan.predicted_us)
        candidate = by_decisions.get(decided(plan), new)
        by_decisions[decided(plan)] = replace(candidate, labels=(*candidate.labels, label))
    return tuple(by_decisions.values())


def _planned(graph: Path, options: Options, labels: Collection[str]) -> Iterator[tuple[str, Plan, Imported]]:
    for label in [label for label in STRATEGIES if label in {FP32, *labels}]:
        strategy, lists = STRATEGIES[label]
        chosen = replace(options, strategy=strategy, lists=oplists(lists))
        result = optimize_model(graph, chosen)
        yield label, result.plan, import_model(result.model)
        if label in PADDING and result.plan.pads:
            without = optimize_model(graph, replace(chosen, pads=False))
            yield f"{label}, no padding", without.plan, import_model(without.model)


def peer_candidate(label: str, path: Path) -> Candidate:
    """Read a peer's graph."""
    return Candidate(labels=(label,), imported=import_model(path), casts=None, predicted_us=None)


def groups(labels: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    """Split graphs into groups that are measured together, each with the two that speed-ups refer to.

    Examples
    --------
    >>> groups(["fp32", "tf-amp tf115", "campo", "optimal"], 3)[1]
    ('fp32', 'tf-amp tf115', 'optimal')
    """
    first = tuple(label for label in labels if label in FIRST)
    rest = [label for label in labels if label not in FIRST]
    width = max(1, size - len(first)) if size else max(1, len(rest))
    return tuple((*first, *rest[i : i + width]) for i in range(0, max(1, len(rest)), width))


def measure(
    members: Sequence[Candidate], machine: Machine, effort: Effort, batch: int | None, deadline: Deadline
) -> dict[str, Any]:
    """Measure graphs in turns, FP32 first: by label a BenchRow, the speed-up over TF_AMP and the Casts."""
    deadline.need(effort.budget_s)
    result = bench(
        [Graph(name=member.labels[0], imported=member.imported) for member in members],
        machine,
        steps=effort.steps,
        budget_s=effort.budget_s,
        cuda_graph=effort.cuda_graph,
        energy=effort.energy,
        batch=batch,
        on_progress=deadline.tick,
    )
    samples_us = result.samples_us
    baseline = next((samples_us.get(m.labels[0], ()) for m in members if TF_AMP in m.labels), None)
    rows: dict[str, dict[str, Any]] = {}
    for member, row in zip(members, result.rows, strict=True):
        over = None
        if baseline is not None and row.verdict is not Outcome.FAILED:  # paired round by round
            over = asdict(paired_speedup(baseline, samples_us.get(row.name, ()), result.rounds_per_run))
        told = {"over_tf_amp": over, "casts": member.casts, "predicted_us": member.predicted_us}
        figures = {**asdict(row), **told}
        rows |= dict.fromkeys(member.labels, figures)
    facts = {key: value for key, value in asdict(result).items() if key not in ("rows", "samples_us")}
    return facts | {"rows": rows}
