"""Predicted errors of plans of a frontier beside emulated and computed ones, and beside other plans."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.frontier.steps import Case, case_of
from campo_onnx import Precision, oplists
from campo_onnx.emulation.drift import Reference
from campo_onnx.emulation.emulated_steps import EmulatedSteps
from campo_onnx.emulation.first_order import DIRECTIONS, first_order, squared_error
from campo_onnx.emulation.frontier import spread_over
from campo_onnx.emulation.numerics import RANDOM, emulate, seeded
from campo_onnx.emulation.rounded import with_roundings
from campo_onnx.emulation.sensitivity import measure_sensitivities, references_of
from campo_onnx.errors import CampoError
from campo_onnx.ops.registry import spec
from campo_onnx.optimize.frontier import FrontierPoint, frontier
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding
from campo_onnx.optimize.strategies.optimal import answer
from campo_onnx.planning.frontier import FrontierPlan, are_nested, frontier_plans
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.runtime.registry import load, machine

Facts = dict[str, Any]

RUNS, SAMPLE, PLANS, PLACES, DRAWS, PREFIXES = 80, 40, 24, 4, 3, 48
_QUANTILES = {"low": 0.1, "median": 0.5, "high": 0.9}
LISTED = ("torch-amp", "tf-amp", "campo")


def quality(name: str, low: Precision, work: Path) -> Facts:
    """Look at one step: its frontier, single roundings, random plans, plans of lists.

    Returns
    -------
    dict
        Times in microseconds; errors relative.
    """
    began = time.process_time()
    case = case_of(name, low, work)
    with EmulatedSteps(references_of(case.imported, case.batches), work / "steps") as steps:
        measured = measure_sensitivities(case.problem, steps, most_runs=RUNS)
        plans = frontier_plans(case.problem, case.imported, case.options, measured.squared_errors)
        places = [*spread_over(len(plans), PLANS)]
        rows = [_row(plans[i], case, steps) for i in places]
        facts: Facts = {
            "name": Path(name).stem,
            "low": low.value,
            "batches": len(case.batches),
            "device": case.options.target.name,
            "nodes": len(case.problem.view.nodes),
            "roundings": len(measured.squared_errors),
            "runs": measured.runs,
            "directions": measured.directions,
            "plans": len(plans),
            "nested": are_nested([one.point for one in plans]),
            "fp32_us": plans[0].fp32_us,
            "rows": rows,
            "first_order": _first_order(case, steps, [*measured.squared_errors]),
            "random": _random(case, plans, measured.squared_errors, steps),
            "lists": [_listed(strategy, case, plans, rows, places, steps) for strategy in LISTED],
            "node_model": _node_model(case.problem, measured.squared_errors, [one.point for one in plans]),
        }
    return facts | {"cpu_s": time.process_time() - began}


def _row(one: FrontierPlan, case: Case, steps: EmulatedSteps) -> Facts:
    return {
        "time_us": one.point.time_us,
        "predicted": one.point.error,
        "emulated": _emulated(one.plan, case, steps),
        "computed": _computed(one.plan, case, steps.references),
    }


def _emulated(plan: Plan, case: Case, steps: EmulatedSteps) -> float | None:
    error = steps.squared_error(seeded(emulate(rewrite(case.imported, plan), case.options.dims)))
    return math.sqrt(error) if math.isfinite(error) else None


def _computed(plan: Plan, case: Case, references: Sequence[Reference]) -> float | None:
    """Let OpenVINO compute the step in BF16; None where it does not, or draws other numbers."""
    if case.options.low is not Precision.BF16 or any(node.op in RANDOM for node in case.problem.view.nodes):
        return None
    try:
        here = machine("cpu", 1, "openvino")
        session = load(rewrite(case.imported, plan), here, folder=case.imported.folder)
        return math.sqrt(fmean(r.squared_error_of(session.run(r.feeds).items()) for r in references))
    except CampoError:
        return None


def _first_order(case: Case, steps: EmulatedSteps, every: Sequence[Rounding]) -> Mapping[str, Facts]:
    """Compare estimates with single roundings, by what the node of a rounding is; a sample of them."""
    model = first_order(case.problem, steps.references, every)
    sums = [
        [model.sums(reference, direction) for direction in range(DIRECTIONS)]
        for reference in steps.references
    ]
    chosen = random.Random(0).sample(every, min(SAMPLE, len(every)))
    exact = seeded(case.imported.model)
    factors: dict[str, list[float]] = {}
    for rounding in chosen:
        single = steps.squared_error(with_roundings(exact, [rounding], case.problem))
        if rounding not in model.outputs:
            continue
        estimate = fmean(squared_error([one[rounding] for one in of_batch]) for of_batch in sums)
        if 0.0 < single < math.inf and 0.0 < estimate < math.inf:
            node = case.problem.view.node[rounding.producer or rounding.reader or ""]
            factors.setdefault(spec(node.op).family.value, []).append(math.sqrt(estimate / single))
    return {
        family: {
            "count": len(of),
            **dict(zip(_QUANTILES, np.quantile(of, [*_QUANTILES.values()]).tolist(), strict=True)),
        }
        for family, of in sorted(factors.items())
    }


def _random(
    case: Case, plans: Sequence[FrontierPlan], errors: Mapping[Rounding, float], steps: EmulatedSteps
) -> list[Facts]:
    """Raise nodes of the fastest plan in random order, as far as plans of the frontier take."""
    rows = []
    fastest = sorted(plans[0].point.low)
    inner = [one for one in plans[1:] if one.point.error]
    for place in spread_over(len(inner), PLACES):
        aim = inner[place]
        for seed in range(DRAWS):
            order = random.Random(f"{place} {seed}").sample(fastest, len(fastest))
            prefixes = (frozenset(order[count:]) for count in {*spread_over(len(order) + 1, PREFIXES)})
            low = min(prefixes, key=lambda low: abs(case.problem.predicted_us(low) - aim.point.time_us))
            plan = _plan_of(case.problem, low)
            rows.append(
                {
                    "time_us": plan.predicted_us,
                    "of_us": aim.point.time_us,
                    "predicted": math.sqrt(math.fsum(e for one, e in errors.items() if one.is_there(low))),
                    "emulated": _emulated(plan, case, steps),
                    "of_error": aim.point.error,
                    "of_emulated": _emulated(aim.plan, case, steps),
                }
            )
    return rows


def _plan_of(problem: Problem, low: frozenset[str]) -> Plan:
    assignment = answer(problem, low, frozenset(), lower_bound_us=0.0)
    return make_plan(problem, assignment, strategy="random", lists="campo")


def _listed(
    strategy: str, case: Case, plans: Sequence[FrontierPlan], rows: Sequence[Facts], places: Sequence[int],
    steps: EmulatedSteps,
) -> Facts:  # fmt: skip
    """Plan by a strategy with its own lists, and take the fastest plan of the frontier within its error."""
    from campo_onnx.optimize.strategies import STRATEGIES

    lists = oplists(STRATEGIES[strategy].default_lists)
    options = replace(case.options, strategy=strategy, lists=lists)
    plan = decide(problem_of(case.imported, options), case.imported, options)
    error = _emulated(plan, case, steps)
    if error is None:
        beside = plans[0].point.time_us  # a step that breaks has any error
    else:
        beside = next(
            plans[i].point.time_us for i, row in zip(places, rows, strict=True) if _within(row, error)
        )
    return {"strategy": strategy, "time_us": plan.predicted_us, "emulated": error, "frontier_us": beside}


def _within(row: Facts, error: float) -> bool:
    return row["emulated"] is not None and row["emulated"] <= error


def _node_model(problem: Problem, errors: Mapping[Rounding, float], points: Sequence[FrontierPoint]) -> Facts:
    """Charge each node for all its roundings, whoever shares them, and count how much longer plans take."""
    alone: dict[Rounding, float] = {}
    for one, error in errors.items():
        for name in one.nodes:
            key = Rounding(tensor=name, producer=name)
            alone[key] = alone.get(key, 0.0) + error
    simple = frontier(problem, alone)
    truly = [math.fsum(e for one, e in errors.items() if one.is_there(p.low)) for p in simple]
    longer = [
        min(p.time_us for p, e in zip(simple, truly, strict=True) if e <= point.squared_error * (1 + 1e-9))
        / point.time_us
        for point in points
    ]
    return {"plans": len(simple), "median": median(longer), "worst": max(longer)}
