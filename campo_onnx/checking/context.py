"""Input of the rules: both graphs, the changes between them, and the predicted steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from campo_onnx.checking.changes import Changes, changes_between
from campo_onnx.checking.policy import Policy
from campo_onnx.errors import PlanMismatchError, UnsupportedModelError
from campo_onnx.files import read_bytes as read_file
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.portable import is_portable
from campo_onnx.ir.view import GraphView
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import CONVOLUTIONS_LOW, as_it_runs, lowered
from campo_onnx.lowering.widen import widened
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import problem_of
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.registry import default_precision, load, machine, runtimes_for
from campo_onnx.targets.detect import resolve_target
from campo_onnx.targets.roofline import copy_us, node_time
from campo_onnx.targets.target import Target, targets


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The graph that a committed plan gives, with its step predicted like the mixed graph's."""

    casts: int
    step_us: float


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """One mixed graph being checked, and everything known about it.

    `ranges` are those of graph inputs that the baseline relies on, and those of the policy.
    """

    fp32: Imported
    mixed: Imported
    changes: Changes
    problem: Problem
    target: Target
    plan: Plan | None
    policy: Policy
    ranges: Mapping[str, DeclaredRange]

    @cached_property
    def step_us(self) -> float:
        """Predicted step of the mixed graph."""
        return predicted_us(self.problem, self.changes, self.mixed.view, self.target)

    @property
    def fp32_us(self) -> float:
        """Predicted step of the FP32 graph, or of the given one where nodes of it are low."""
        low = self.problem.low_as_given
        return self.problem.predicted_us(low) if low else self.problem.costs.fp32_us

    @property
    def plan_fits(self) -> bool:
        """Whether the committed plan was made for this very graph."""
        return self.plan is not None and self.plan.digest == self.fp32.digest

    @cached_property
    def baseline(self) -> Baseline | None:
        """The committed plan applied to the FP32 graph; None without a plan that fits.

        The step is predicted again: the figures in the plan may be for another device, or come from
        another version's cost model.
        """
        if self.plan is None or not self.plan_fits:
            return None
        planned = import_model(rewrite(self.fp32, self.plan), self.policy.dims)
        changes = changes_between(
            self.fp32, planned, title="the baseline", default=self.changes.low, with_weights=False
        )
        return Baseline(
            casts=len(changes.casts), step_us=predicted_us(self.problem, changes, planned.view, self.target)
        )

    @cached_property
    def interface_changes(self) -> tuple[str, ...]:
        """Differences in inputs and outputs."""
        return tuple(_interface_changes(self.fp32, self.mixed))

    @cached_property
    def load_error(self) -> str:
        """Why ONNX Runtime's CPU provider does not load the mixed graph; ``""`` where it does."""
        return _load_error(self.mixed)

    @cached_property
    def fp32_load_error(self) -> str:
        """The same for the FP32 graph, which may need ONNX Runtime's training build."""
        return _load_error(self.fp32)


def context_of(fp32: Imported, mixed: Imported, policy: Policy, *, title: str) -> CheckContext:
    """Gather what the rules look at."""
    plan = None if policy.baseline is None else _read_plan(policy.baseline)
    if is_portable(fp32.model) and not is_portable(mixed.model):
        fp32 = _as_it_was_lowered(fp32, mixed, _target_of(plan, mixed), policy)
    if mixed.view.opset.get("", 0) > fp32.view.opset.get("", 0):
        fp32 = _as_planned(fp32, _target_of(plan, mixed), policy)
    if mixed.stamp is not None:
        fp32 = widened(fp32, Precision(mixed.stamp.low), policy.dims)
    target = _as_it_runs(policy.target or _target_of(plan, mixed), plan, mixed)
    changes = changes_between(fp32, mixed, title=title, default=default_precision(target.runtime.name))
    if plan is not None and plan.runtime != target.runtime.name:
        raise PlanMismatchError(
            f"the baseline {policy.baseline} is for {plan.runtime}, the check for {target.runtime.name}",
            remedy="Leave the device out, or plan the model for that runtime.",
        )
    relied_on = plan.ranges if plan is not None and plan.digest == fp32.digest else {}
    ranges = {**relied_on, **policy.ranges}
    options = Options(
        target=target,
        lists=policy.lists,
        low=changes.low,
        keep_fp32=policy.keep_fp32,
        dims=policy.dims,
        ranges=ranges,
    )
    return CheckContext(
        fp32=fp32,
        mixed=mixed,
        changes=changes,
        problem=problem_of(fp32, options),
        target=target,
        plan=plan,
        policy=policy,
        ranges=ranges,
    )


def _as_it_was_lowered(fp32: Imported, mixed: Imported, target: Target, policy: Policy) -> Imported:
    """Bring a portable step into the form of a mixed one, which has the nodes of the right runtime."""
    names = mixed.view.node.keys()
    for runtime in (target.runtime, *runtimes_for(target.hardware.processor)):
        place = Place(target=Target.of(target.hardware, runtime))
        form = as_it_runs(fp32, place, policy.dims)
        if all(node.name in names for node in form.view.nodes if node.op.op_type != "Cast"):
            return form
    return fp32


def _as_planned(fp32: Imported, target: Target, policy: Policy) -> Imported:
    """Bring the FP32 graph into the form of which BF16 plans with convolutions are made."""
    try:
        return lowered(fp32, Place(target=target), CONVOLUTIONS_LOW, policy.dims)
    except UnsupportedModelError:
        return fp32


def _target_of(plan: Plan | None, mixed: Imported) -> Target:
    """The target that the plan, or else the mixed graph, was made for, if its figures are known."""
    for origin in (plan, mixed.stamp):
        if origin is not None and origin.device in targets():
            return resolve_target(origin.device, origin.runtime)[0]
    return resolve_target("auto")[0]


def _as_it_runs(target: Target, plan: Plan | None, mixed: Imported) -> Target:
    """The target, running the step as it was planned to run: the baseline says it, else the mixed file."""
    origin = plan or mixed.stamp
    is_captured = origin is not None and origin.captured and target.can_capture
    return target.captured if is_captured else target


def _read_plan(path: Path) -> Plan:
    title = f"the baseline {path}"
    text = read_file(
        path, title=title, remedy="Write one with: campo-onnx optimize MODEL -o MIXED --plan FILE"
    )
    return Plan.from_json(text, title=title)


def _interface_changes(fp32: Imported, mixed: Imported) -> list[str]:
    changes = []
    for what in ("input", "output"):
        before, after = ({v.name: v.type for v in getattr(m.model.graph, what)} for m in (fp32, mixed))
        changes += [f"{what} {name!r} is missing" for name in before if name not in after]
        changes += [f"{what} {name!r} is new" for name in after if name not in before]
        changes += [
            f"{what} {name!r} has a different type or shape"
            for name, declared in before.items()
            if name in after and after[name] != declared
        ]
        if not changes and list(before) != list(after):
            changes.append(f"{what}s are in a different order")
    return changes


def _load_error(imported: Imported) -> str:
    try:
        load(imported.model, machine(CPU), folder=imported.folder, settings=LoadSettings(must_stay=False))
    except UnsupportedModelError as error:
        return error.why
    return ""


def predicted_us(problem: Problem, changes: Changes, mixed: GraphView, target: Target) -> float:
    """Predict the step of a mixed graph as it stands, whoever wrote it.

    Every node counts in its precision, and so does every Cast, Pad and Slice, shared or not. For a
    graph that was made by a plan this is what the plan predicts.
    """
    costs = problem.costs
    nodes_us = 0.0
    for name, cost in costs.nodes.items():
        if name in changes.low_nodes:
            nodes_us += cost.low_us * _padding_factor(name, problem, mixed, target)
        elif name not in changes.removed:
            nodes_us += cost.fp32_us
    casts_us = sum(costs.cast.cast_us(mixed.tensors[cast.inputs[0]].elements or 0) for cast in changes.casts)
    paddings_us = 0.0
    for node in changes.paddings:
        source, written = (mixed.tensors[t].nbytes for t in (node.inputs[0], node.outputs[0]))
        # A Slice reads only what it keeps.
        read_bytes = written if node.op.label == "Slice" else source
        paddings_us += copy_us(read_bytes + written, target)
    return nodes_us + casts_us + paddings_us


def _padding_factor(name: str, problem: Problem, mixed: GraphView, target: Target) -> float:
    """Time of a padded product over its time without padding; 1 for a node that was not padded."""
    node, now = problem.view.node[name], mixed.node[name]
    sizes = [(problem.view.shape(a), mixed.shape(b)) for a, b in zip(node.inputs, now.inputs, strict=True)]
    sizes += [(problem.view.shape(a), mixed.shape(b)) for a, b in zip(node.outputs, now.outputs, strict=True)]
    if all(before == after for before, after in sizes):
        return 1.0
    ports = problem.ports[name]
    kernel_us = node_time(problem.view.signature(name), ports, target, problem.low).time_us
    return node_time(mixed.signature(name), ports, target, problem.low).time_us / kernel_us
