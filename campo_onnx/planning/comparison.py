"""Every strategy side by side on one graph."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from campo_onnx.costs.table import CostTable
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.lists.oplists import OpLists, preset
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.strategies.listed import all_fp32
from campo_onnx.optimize.traffic import Traffic, planned_traffic
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, form_for, problem_of

ROWS = tuple(
    (strategy.name, lists)
    for strategy in reversed([*STRATEGIES.values()])
    for lists in (strategy.default_lists, *strategy.compared_with)
)
"""Strategies, each with its own lists, and with further ones to tell lists and costs apart."""

BASELINE = ("tf-amp", STRATEGIES["tf-amp"].default_lists)
"""The row that speed-ups over TF_AMP refer to: the paper's baseline."""

AS_GIVEN = "as given"
"""Called so in place of a strategy: a file some of whose nodes are low, as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The error of an emulated step beside the FP32 step."""

    # Relative error of the output that is furthest off (Reference); None where the step could not be
    # emulated.
    error: float | None
    output: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One strategy on the graph."""

    plan: Plan
    # Predicted time of its low nodes on tensor cores. FP32 nodes do not count, though they may run there as
    # TF32.
    tensor_core_us: float
    traffic: Traffic
    # measured_us, measured_speedup: measured step, and the FP32 step over it; None where nothing was measured
    # or the graph did not run.
    measured_us: float | None = None
    measured_speedup: float | None = None
    # 95 % confidence interval of the measured speed-up; None for the FP32 step itself.
    measured_bounds: tuple[float, float] | None = None
    verdict: str = ""  # how the measured step compares with FP32 (`Outcome`); `""` where nothing was measured
    # By format of the low nodes, how far the emulated step is from FP32's; empty where that was not asked
    # (with_drift).
    drift: Mapping[str, Drift] = field(default_factory=dict)

    @property
    def tensor_core_share(self) -> float:
        """Share of the predicted step (the paper's tensor-core utilization)."""
        return self.tensor_core_us / self.plan.predicted_us if self.plan.predicted_us else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All strategies on one graph."""

    imported: Imported
    problem: Problem  # costs of its nodes, which all rows share, under the lists of the first
    # In the order of ROWS; before them the file as it is, where nodes of it are low.
    rows: tuple[ComparisonRow, ...]
    interrupted: bool = False

    @property
    def baseline(self) -> ComparisonRow:
        """The row of TF_AMP."""
        first = next((r for r in self.rows if (r.plan.strategy, r.plan.lists) == BASELINE), None)
        return first or next(r for r in self.rows if r.plan.strategy == BASELINE[0])

    @property
    def as_given(self) -> Plan | None:
        """The file as it is, where nodes of it are low."""
        first = self.rows[0].plan
        return first if first.strategy == AS_GIVEN else None


def compare(
    source: str | Path | onnx.ModelProto, options: Options, *, lists: OpLists | None = None
) -> Comparison:
    """Let every strategy plan the same graph.

    `options`: device, precision, dimensions, nodes to keep; strategy and lists are each row's own.
    `lists`: lists for all strategies, in place of each one's own.
    """
    imported = import_model(source, options.dims)
    imported.refuse_result()
    imported = form_for(imported, options)
    chosen = _rows(lists)
    problems = {
        name: problem_of(imported, replace(options, lists=row_lists))
        for name, row_lists in {row_lists.name: row_lists for _, row_lists in chosen}.items()
    }
    shared = problems[chosen[0][1].name]
    plans = [(shared, _as_given(shared))] if shared.starts_low else []
    for strategy, row_lists in chosen:
        problem = problems[row_lists.name]
        plans.append(
            (problem, decide(problem, imported, replace(options, strategy=strategy, lists=row_lists)))
        )
    rows = tuple(
        ComparisonRow(
            plan=plan,
            tensor_core_us=_tensor_core_us(plan, problem.costs),
            traffic=planned_traffic(problem, plan),
        )
        for problem, plan in plans
    )
    return Comparison(imported=imported, problem=shared, rows=rows)


def _as_given(problem: Problem) -> Plan:
    """State what a file has in low precision as a plan."""
    answer = replace(all_fp32(problem, Reason.AS_WRITTEN.of()), low=problem.low_as_given)
    return make_plan(problem, answer, strategy=AS_GIVEN, lists="the file")


def _tensor_core_us(plan: Plan, costs: CostTable) -> float:
    padded = {pad.node for pad in plan.pads}  # a product is padded to get there
    return math.fsum(
        d.planned_us
        for d in plan.decisions
        if d.node in plan.low_nodes and (costs.nodes[d.node].on_tensor_cores or d.node in padded)
    )


def _rows(lists: OpLists | None) -> Sequence[tuple[str, OpLists]]:
    if lists is not None:
        return [(strategy, lists) for strategy in reversed([*STRATEGIES])]
    return [(strategy, preset(name)) for strategy, name in ROWS]
