"""Exports and plans of a trial: one step for this machine, one for GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.bench.rounds import Progress
from campo_onnx.files import temporary_folder
from campo_onnx.integrations.trial.result import PlanFacts
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.precision import low_precisions
from campo_onnx.ops.registry import RANDOM
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.auto_precision import choose_precision
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import apply, decide, problem_of
from campo_onnx.targets.target import Target

if TYPE_CHECKING:
    from campo_onnx.integrations.trial.torch_steps import TorchStep

LISTS = "campo"


def computes_low(target: Target) -> bool:
    """Whether a target has arithmetic in a low precision."""
    return any(map(target.computes_in, low_precisions()))


def draws(exported: Imported) -> bool:
    """Whether a step draws random numbers, so that two runs of it differ."""
    return any(node.op in RANDOM for node in exported.view.nodes)


def export_step(user: "TorchStep", path: Path, target: Target, *, loss_scale: bool = False) -> Imported:
    """Write the step of a user as a graph in the form that a target's runtime runs, and read it."""
    from campo_onnx.export.torch import export_training_step

    export_training_step(
        user.module, user.loss, user.inputs, user.targets, loss_scale=loss_scale, target=target, path=path
    )
    return import_model(path)


def plan_step(exported: Imported, options: Options, path: Path) -> PlanFacts:
    """Plan for this machine in the low precision that suits it.

    The mixed step is written to `path` if the plan changes something.
    """
    choice = choose_precision(exported, options)
    options = replace(options, low=choice.low)
    form = choice.forms.get(choice.low, exported)
    problem = choice.problems.get(choice.low) or problem_of(form, options)
    plan = choice.plans.get(choice.low) or decide(problem, form, options)
    if plan.low_nodes:
        export_model(apply(plan, problem, form).model, path)
    return _facts(plan, options.target, choice.why)


def predicted(user: "TorchStep", targets: Sequence[Target], tell: Progress) -> Iterator[PlanFacts]:
    """Plan for other devices with low arithmetic, from public figures, with a loss scale in the step."""
    if not targets:
        return
    with temporary_folder() as folder:
        exported = export_step(user, folder / "step.onnx", targets[0], loss_scale=True)
    for number, target in enumerate(targets):
        tell(number, len(targets))
        choice = choose_precision(exported, Options(target=target, lists=preset(LISTS)))
        if choice.low in choice.plans:
            yield _facts(choice.plans[choice.low], target, choice.why)


def _facts(plan: Plan, target: Target, why: str) -> PlanFacts:
    return PlanFacts(
        device=target.name,
        title=target.hardware.title,
        low=plan.low.value,
        why=why,
        nodes=len(plan.decisions),
        low_nodes=len(plan.low_nodes),
        casts=len(plan.casts),
        fp32_us=plan.fp32_us,
        predicted_us=plan.predicted_us,
        source=plan.source,
    )
