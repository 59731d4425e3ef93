"""Choose the low precision that a graph trains in: the one with the faster plan, where gradients survive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from campo_onnx.costs.evidence import CostSource
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, form_for, planned, problem_of, vanishing_gradients
from campo_onnx.runtime.registry import default_precision
from campo_onnx.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """A low precision, and why."""

    low: Precision
    why: str
    # plans, problems, forms: the plan in each precision that the device computes in, what it decided about,
    # and the form of the graph that it is of; empty for a graph that was optimized before.
    plans: Mapping[Precision, Plan]
    problems: Mapping[Precision, Problem]
    forms: Mapping[Precision, Imported]


def choose_precision(source: str | Path | onnx.ModelProto | Imported, options: Options) -> PrecisionChoice:
    """Choose between the low precisions that a device computes in.

    Each is planned. Without a loss scale in the graph small gradients become zero in a format with fewer
    exponents than FP32, such as FP16; another is taken where the device has one. Among the rest the plan that
    is predicted to be fastest decides, if the next is slower by more than `options.min_gain` of the step; if
    not, the format that rounds finest does. Where only some formats are calibrated, public figures compare.

    `source`: the FP32 training step: a path, a model, or either as it was imported.
    `options`: what to decide with; `low` does not matter.
    """
    imported = source if isinstance(source, Imported) else import_model(source, options.dims)
    if imported.stamp is not None:
        low = Precision(imported.stamp.low)
        return PrecisionChoice(
            low=low, why="The model was optimized in it before.", plans={}, problems={}, forms={}
        )
    plans: dict[Precision, Plan] = {}
    problems: dict[Precision, Problem] = {}
    forms: dict[Precision, Imported] = {}
    for low in computed_in(options.target):
        with_low = replace(options, low=low)
        forms[low] = form_for(imported, with_low)
        problems[low] = problem_of(forms[low], with_low)
        plans[low] = decide(problems[low], forms[low], with_low)
    compared = plans
    if options.costs is CostSource.AUTO and len({plan.source for plan in plans.values()}) > 1:
        # A calibration and public figures differ by more than two formats do.
        figures = replace(options, costs=CostSource.DATASHEET)
        compared = {low: planned(forms[low], replace(figures, low=low)) for low in plans}
    low, why = _choice(compared, problems, options)
    return PrecisionChoice(low=low, why=why, plans=plans, problems=problems, forms=forms)


def computed_in(target: Target) -> tuple[Precision, ...]:
    """List the low precisions that a device computes in."""
    return tuple(filter(target.computes_in, low_precisions()))


def _choice(
    plans: Mapping[Precision, Plan], problems: Mapping[Precision, Problem], options: Options
) -> tuple[Precision, str]:
    name = options.target.name
    if not plans:
        return default_precision(options.target.runtime.name), f"{name} computes in none."
    if len(plans) == 1:
        return next(iter(plans)), f"It is the only low precision that {name} computes in."
    times = _listed([f"{p.predicted_us / 1000:.3f} ms in {low.name}" for low, p in plans.items()])
    losses = {low: len(vanishing_gradients(plan, problems[low])) for low, plan in plans.items()}
    exact = [low for low, lost in losses.items() if not lost]
    lossy = [low for low, lost in losses.items() if lost]
    if lossy and len(exact) == 1:
        most = max(losses.values())
        return exact[0], (
            f"The graph does not scale its loss, and {most} nodes of the backward pass would lose small "
            f"gradients in {_listed([low.name for low in lossy])}; predicted {times}."
        )
    candidates = exact or lossy
    finest = max(candidates, key=lambda low: low.fraction_bits)
    if not any(plans[low].low_nodes for low in candidates):
        return finest, f"{'Neither' if len(plans) == 2 else 'No'} low precision pays: FP32 stays."
    loss = (
        f"Small gradients would vanish in {_listed([low.name for low in lossy])}. " if exact and lossy else ""
    )
    fastest = min(candidates, key=lambda low: plans[low].predicted_us)
    margin_us = options.min_gain * min(plan.fp32_us for plan in plans.values())
    close = [low for low in candidates if plans[low].predicted_us - plans[fastest].predicted_us <= margin_us]
    if len(close) == 1:
        return fastest, f"{loss}Its step is {_than(plans, 'faster', 'fastest')}: predicted {times}."
    finest = max(close, key=lambda low: low.fraction_bits)
    alike = "Both steps" if len(plans) == 2 else f"The steps in {_listed([low.name for low in close])}"
    finer = _than(plans, "finer", "finest")
    return finest, f"{loss}{alike} take about as long (predicted {times}), and {finest.name} rounds {finer}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _than(plans: Mapping[Precision, Plan], of_two: str, of_more: str) -> str:
    return of_two if len(plans) == 2 else of_more
