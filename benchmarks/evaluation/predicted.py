"""What every strategy is predicted to make of a graph on a device. Nothing is run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.strategies import OPTIMAL, PADDING, STRATEGIES, label_of, options_for

from campo_onnx.comparison import ComparisonRow, compare
from campo_onnx.devices.datasheet import device
from campo_onnx.optimize.oplists import preset
from campo_onnx.optimize.plan import Plan
from campo_onnx.pipeline import decide, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """One strategy on one graph.

    Parameters
    ----------
    step_us, fp32_us
        Predicted step of its graph, and of the FP32 graph.
    casts, pads, low_nodes
        Casts inserted, products padded, nodes in FP16.
    cast_us
        Predicted time of all Casts.
    missed_us
        What FP16 would save, before Casts, on the nodes that `optimal` puts into FP16 and this strategy does
        not, by who decided (``traverse-1``, ``lists``).
    tensor_core_share
        Share of the step in low nodes on tensor cores (section 7.3).
    unpadded_us
        Predicted step with padding off; `step_us` for a strategy that never pads.
    source
        Where the costs come from.
    """

    step_us: float
    fp32_us: float
    casts: int
    pads: int
    low_nodes: int
    cast_us: float
    missed_us: Mapping[str, float]
    tensor_core_share: float
    unpadded_us: float
    source: str

    @property
    def speedup(self) -> float:
        """Throughput over FP32's."""
        return self.fp32_us / self.step_us


def predict(graph: Path, device_name: str, labels: Collection[str]) -> dict[str, PredictedRow]:
    """Let the strategies plan a graph for a device.

    Parameters
    ----------
    graph
        The FP32 training step.
    device_name
        A device of the data sheets.
    labels
        Which strategies.

    Returns
    -------
    dict
        By label.
    """
    options = options_for(device(device_name))
    compared = compare(graph, options)
    rows = {label_of(row.plan.strategy, row.plan.lists): row for row in compared.rows}
    without: dict[str, float] = {}
    if padding := [label for label in labels if label in PADDING]:
        # The strategies that pad plan by the same lists, so one problem serves them.
        lists = preset(STRATEGIES[padding[0]][1])
        problem = problem_of(compared.imported, replace(options, lists=lists))
        for label in padding:
            chosen = replace(options, strategy=STRATEGIES[label][0], lists=lists, pads=False)
            without[label] = decide(problem, compared.imported, chosen).predicted_us
    best = rows[OPTIMAL].plan
    return {label: _row(rows[label], best, without.get(label)) for label in STRATEGIES if label in labels}


def _row(row: ComparisonRow, best: Plan, unpadded_us: float | None) -> PredictedRow:
    plan = row.plan
    missed = best.low_nodes - plan.low_nodes
    missed_us: dict[str, float] = {}
    for decision in plan.decisions:
        if decision.node in missed:
            missed_us[decision.decided_by] = missed_us.get(decision.decided_by, 0.0) + decision.gain_us
    return PredictedRow(
        step_us=plan.predicted_us,
        fp32_us=plan.fp32_us,
        casts=len(plan.casts),
        pads=len(plan.pads),
        low_nodes=len(plan.low_nodes),
        cast_us=plan.cast_us,
        missed_us=missed_us,
        tensor_core_share=row.tensor_core_share,
        unpadded_us=plan.predicted_us if unpadded_us is None else unpadded_us,
        source=plan.source,
    )
