"""Every strategy's graph, measured side by side."""

from collections.abc import Mapping
from dataclasses import replace

from campo_onnx.bench.result import Interval
from campo_onnx.bench.subject import Subject
from campo_onnx.comparison import Comparison
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.verify import Measure


def measured(comparison: Comparison, measure: Measure, dims: Mapping[str, int] | None = None) -> Comparison:
    """Fill in what each strategy's step takes.

    Strategies that decide alike share one measurement.

    Parameters
    ----------
    comparison
        What the strategies decided.
    measure
        How to measure, see :mod:`campo_onnx.verify`.
    dims
        Sizes of symbolic dimensions, as the strategies were compared with.
    """
    plans = {_decided(row.plan): row.plan for row in reversed(comparison.rows)}
    nothing = _decided(comparison.rows[0].plan)  # the strategy fp32
    names = {decided: f"{plan.strategy} {plan.lists}" for decided, plan in plans.items()}
    subjects = [Subject(name=names[nothing], imported=comparison.imported)]
    subjects += [
        Subject(name=names[decided], imported=_mixed(comparison, plan, dims))
        for decided, plan in reversed(plans.items())
        if decided != nothing
    ]
    found = {row.name: row for row in measure(subjects).rows}
    rows = []
    for row in comparison.rows:
        decided = _decided(row.plan)
        timed = found[names[decided]]
        step_us, speedup = _median(timed.step_us), _median(timed.speedup)
        if decided == nothing and step_us is not None:
            speedup = 1.0
        rows.append(replace(row, measured_us=step_us, measured_speedup=speedup))
    return replace(comparison, rows=tuple(rows))


def _decided(plan: Plan) -> tuple[object, ...]:
    return plan.low_nodes, plan.pads


def _mixed(comparison: Comparison, plan: Plan, dims: Mapping[str, int] | None) -> Imported:
    given = comparison.imported
    return replace(import_model(rewrite(given, plan), dims), folder=given.folder)


def _median(interval: Interval | None) -> float | None:
    return interval.median if interval is not None else None
