"""Sources of a report's costs, and the evidence behind each."""

from collections.abc import Mapping
from dataclasses import dataclass

from campo_onnx.costs.evidence import CostSource
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.targets.target import Assumptions, targets

MEANINGS: Mapping[CostSource, str] = {
    CostSource.MEASURE: "measured: the node was timed alone on this machine, in both precisions",
    CostSource.MODEL: "predicted by a calibration of the device, from measurements of other shapes",
    CostSource.GENERAL: "predicted by the calibration's one model for all operators, which is less exact",
    CostSource.DATASHEET: "estimated from the device's public figures; nothing was measured",
    CostSource.SCALED: "predicted, then raised to what the whole step was measured to take",
    CostSource.UNKNOWN: "nothing is known, and no time is counted",
}
"""Meaning of each source, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Nodes whose costs have one source."""

    source: str
    meaning: str
    nodes: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Evidence behind the figures.

    `device` is the full name and `figures_from` the source of its public figures; ``""`` for one that the
    program does not come with.
    """

    device: str
    figures_from: str
    predicted: str  # how the figures came about, in two or three words: what stands beside each of them
    sources: tuple[SourceRow, ...]  # By share of the step, largest first
    assumed: Assumptions  # figures that no data sheet states, each with a reason
    cast: str  # how the time of a Cast is computed; ``""`` where only a plan file is at hand
    basis: tuple[str, ...]  # machine, software, date and accuracy of measurements, one sentence each


def provenance(plan: Plan, problem: Problem | None) -> Provenance:
    """Say where the costs of a plan come from.

    `problem` has the costs of every node; None where only a plan file is at hand, which says one source for
    all.
    """
    planned_for = targets().get(plan.device)
    # A plan file may have been written by a version with other sources.
    known_sources = {source.value for source in CostSource}
    source = CostSource(plan.source) if plan.source in known_sources else CostSource.UNKNOWN
    assumed: Assumptions = {}
    if planned_for is not None:
        assumed = (planned_for if problem is None else problem.costs.target).assumptions
    return Provenance(
        device=plan.device if planned_for is None else planned_for.hardware.title,
        figures_from="" if planned_for is None else planned_for.hardware.source,
        predicted=_ways(source),
        sources=_rows(plan, problem, source),
        assumed=assumed,
        cast="" if problem is None else f"{problem.costs.cast} a Cast",
        basis=() if problem is None else problem.costs.basis,
    )


def _ways(source: CostSource) -> str:
    return {
        CostSource.DATASHEET: "predicted, from public figures",
        CostSource.MEASURE: "predicted, from measured nodes",
        CostSource.MODEL: "predicted, from a calibration",
    }.get(source, "predicted")


def _rows(plan: Plan, problem: Problem | None, whole: CostSource) -> tuple[SourceRow, ...]:
    nodes: dict[CostSource, int] = {}
    times_us: dict[CostSource, float] = {}
    for decision in plan.decisions:
        source = whole if problem is None else problem.costs.nodes[decision.node].source
        nodes[source] = nodes.get(source, 0) + 1
        times_us[source] = times_us.get(source, 0.0) + decision.fp32_us
    total_us = sum(times_us.values())
    rows = [
        SourceRow(
            source=source.value,
            meaning=MEANINGS.get(source, source.value),
            nodes=nodes[source],
            share=times_us[source] / total_us if total_us else 0.0,
        )
        for source in nodes
    ]
    return tuple(sorted(rows, key=lambda row: (-row.share, row.source)))
