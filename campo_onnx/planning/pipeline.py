"""The straight line: import, problem, decide, pad, rewrite."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx

from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.size_ranges import with_examples
from campo_onnx.ir.view import GraphView
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import CONVOLUTIONS_LOW, as_it_runs, gains_convolutions, lowered
from campo_onnx.lowering.widen import widened
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.eligibility import fixed_nodes
from campo_onnx.optimize.graph_kind import graph_kind
from campo_onnx.optimize.lists.classify import classify
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.padding.alignment import open_axes
from campo_onnx.optimize.padding.choose import PadLimits, pad, with_padding
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.safety import protected
from campo_onnx.optimize.strategies.listed import all_fp32, fp32
from campo_onnx.optimize.strategies.optimal import lower_bound_us
from campo_onnx.optimize.traffic import Traffic, planned_traffic, traffic
from campo_onnx.optimize.updates import weight_update
from campo_onnx.optimize.values.loss_scale import loss_scaling, low_gradients
from campo_onnx.planning.options import Options
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.registry import check_precision
from campo_onnx.targets.detect import resolve_target
from campo_onnx.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """The result of :func:`optimize`.

    Parameters
    ----------
    model
        The mixed-precision model; the given one where nothing was worth changing.
    problem
        What was decided about, with costs and classes: reports and explanations read it.
    """

    model: onnx.ModelProto
    plan: Plan
    problem: Problem
    imported: Imported

    @property
    def was_optimized_before(self) -> bool:
        """Whether the given model was a result of campo-onnx already, so that nothing changed."""
        return self.imported.stamp is not None

    @property
    def as_given_us(self) -> float | None:
        """Predicted step of the given file, where nodes of it are low and may stay so."""
        problem = self.problem
        return problem.predicted_us(problem.low_as_given) if problem.low_as_given else None

    @property
    def is_unchanged(self) -> bool:
        """Whether the plan leaves every precision of the given file as it was."""
        return self.plan.low_nodes == self.problem.low_unchanged and not self.plan.pads

    @property
    def unscaled_gradients(self) -> tuple[str, ...]:
        """Nodes of the backward pass in which small gradients vanish, as nothing scales the loss."""
        return vanishing_gradients(self.plan, self.problem)

    @cached_property
    def given_traffic(self) -> Traffic:
        """Launches, bytes and memory of the given step."""
        return traffic((self.imported.as_given or self.imported).view)

    @cached_property
    def planned_traffic(self) -> Traffic:
        """Launches, bytes and memory of the step as it is planned."""
        return planned_traffic(self.problem, self.plan)

    def refused_by(self, target: Target) -> tuple[str, ...]:
        """Nodes for which a target's runtime does not load the graph, be it in FP32 or mixed."""
        view = self.imported.view
        return tuple(
            node.name
            for node in view.nodes
            if target.support(view.signature(node.name), Precision.FP32) is Support.REFUSED
        )


def vanishing_gradients(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Nodes of the backward pass that a plan lowers to a narrow format though nothing scales the loss."""
    if not (plan.low.is_narrow and problem.kind.trains):
        return ()
    return low_gradients(problem.view, loss_scaling(problem.view), plan.low_nodes)


def optimize(source: str | Path | onnx.ModelProto, options: Options | None = None) -> Optimized:
    """Turn an exported FP32 training graph into a mixed-precision one.

    Parameters
    ----------
    source
        Path of the model, or the model itself, which is not changed.
    options
        What to decide with. By default the strategy `optimal` with the lists `campo`, for this machine's GPU
        if its figures are known, else for an H200, from public figures.
    """
    if options is None:
        target, _ = resolve_target("auto")
        options = Options(target=target, lists=preset("campo"))
    imported = form_for(import_model(source, options.dims), options)
    problem = problem_of(imported, options)
    plan = decide(problem, imported, options)
    return apply(plan, problem, imported)


def form_for(imported: Imported, options: Options) -> Imported:
    """Bring a graph into the form that is planned: the one in which the step is predicted to be fastest.

    What is low in it is raised first, and may be lowered again. Then nodes that the runtime refuses or runs
    by a reference implementation become others, in every precision. Last, in BF16, convolutions need a newer
    opset, with what else the target lacks kernels of there. Facts of nodes (a profile, what data shows) are
    of no use for other nodes, so that such a graph stays at its opset.

    Returns
    -------
    Imported
        The graph itself, or another that computes the same. One at a newer opset has the graph in which the
        FP32 step runs as ``given``.
    """
    return best_form(forms_for(imported, options), options)


def forms_for(imported: Imported, options: Options) -> tuple[Imported, ...]:
    """List the forms to choose from: the one that runs in FP32, and one at a newer opset that may gain."""
    place = Place(target=options.target)
    is_bound = bool(options.forbidden or options.released or options.evidence.profile)
    if imported.stamp is not None or not options.lowers:
        return (imported,)
    imported = widened(imported, options.low, options.dims)
    imported = as_it_runs(imported, place, options.dims, chooses=options.lowers_any)
    if is_bound or not gains_convolutions(imported.view, place, options.low):
        return (imported,)
    try:
        return imported, lowered(imported, place, CONVOLUTIONS_LOW, options.dims)
    except UnsupportedModelError:
        return (imported,)


def best_form(forms: tuple[Imported, ...], options: Options) -> Imported:
    """Choose the form whose planned step is predicted to be fastest, the first unless the other gains."""
    if len(forms) == 1:
        return forms[0]
    plans = [planned(form, options) for form in forms]
    least_us = min(plans[0].predicted_us, (1 - options.min_gain) * plans[0].fp32_us)
    return forms[1] if plans[1].low_nodes and plans[1].predicted_us < least_us else forms[0]


def problem_of(imported: Imported, options: Options) -> Problem:
    """Gather what is to be decided: classes, costs, and what is not up for decision.

    What data says of nodes (`options.forbidden`, `options.released`) is added last, so that
    :meth:`~campo_onnx.optimize.problem.Problem.informed` states the same problem with other data.
    """
    view, low = imported.view, options.low
    check_precision(low, options.target.runtime.name)
    kind = graph_kind(view, is_result=imported.stamp is not None)
    ports = {node.name: ports_of(view.signature(node.name), low) for node in view.nodes}
    if imported.as_given is not None:
        kind = replace(kind, storage=graph_kind(imported.as_given.view).storage, may_rise=True)
    fixed = fixed_nodes(
        imported,
        ports,
        low=low,
        target=options.target,
        protected={} if kind.has_nothing_to_protect else protected(view, options.lists),
        keep_fp32=options.keep_fp32,
        declared=options.ranges,
        low_as_given=imported.low_as_given,
    )
    update = frozenset[str]() if kind.has_nothing_to_protect else weight_update(view)
    problem = Problem(
        view=view,
        low=low,
        classification=classify(view, options.lists, update),
        ports=ports,
        fixed=fixed,
        costs=_costs(view, ports, options, is_raised=imported.as_given is not None),
        digest=imported.digest,
        flat=flat_weights_of(view, options),
        kind=kind,
        low_as_given=imported.low_as_given,
    )
    return problem.informed(options.forbidden, options.released)


def fp32_us(view: GraphView, options: Options) -> float:
    """Predict the FP32 step of a graph, in microseconds."""
    ports = {node.name: ports_of(view.signature(node.name), options.low) for node in view.nodes}
    return _costs(view, ports, options).fp32_us


def flat_weights_of(view: GraphView, options: Options) -> FlatWeights | None:
    """Weights that the session casts at once; None where each has its own Cast, as in BF16."""
    return options.flat_weights(view) if options.flat_weights and options.low is Precision.FP16 else None


def _costs(
    view: GraphView, ports: Mapping[str, Ports], options: Options, *, is_raised: bool = False
) -> CostTable:
    table = _node_costs(view, ports, options)
    if not is_raised:
        return table
    # Weights stay stored as they are, and runtimes fold their Casts when they load the graph.
    folded = [n.name for n in view.nodes if n.op.label == "Cast" and view.is_constant(n.inputs[0])]
    return replace(
        table,
        nodes={
            **table.nodes,
            **{name: replace(table.nodes[name], fp32_us=0.0, low_us=0.0) for name in folded},
        },
    )


def _node_costs(view: GraphView, ports: Mapping[str, Ports], options: Options) -> CostTable:
    if options.costs is CostSource.DATASHEET:
        return estimate(view, ports, options.target, options.low)
    # Measuring needs ONNX Runtime, scipy and polars; planning from public figures does not.
    from campo_onnx.costs.choose import costs_for

    return costs_for(view, ports, options.target, options.low, options.costs, options.evidence)


def planned(imported: Imported, options: Options) -> Plan:
    """Decide a graph as it is given."""
    return decide(problem_of(imported, options), imported, options)


def decide(problem: Problem, imported: Imported, options: Options) -> Plan:
    """Let the chosen strategy decide; a stamped graph keeps what was decided before."""
    if imported.stamp is not None:
        stamp = imported.stamp
        answer = replace(fp32(problem), lower_bound_us=problem.predicted_us(frozenset()))  # no choice is left
        return make_plan(problem, answer, strategy=stamp.strategy, lists=stamp.lists)
    strategy, limits = options.chosen_strategy, pad_limits(imported, options)
    seen = with_padding(problem, options.target, limits) if options.may_pad else problem
    answer = strategy.decide(seen)
    plan = make_plan(problem, answer, strategy=strategy.name, lists=options.lists.name)
    if options.may_pad:
        plan = pad(problem, plan, options.target, limits, answer.padded)
    if plan.lower_bound_us is None:
        offered = with_padding(problem, options.target, limits) if options.pads else problem
        bound_us = lower_bound_us(offered, plan.low_nodes, len(plan.pads))
        plan = replace(plan, lower_bound_us=bound_us)
    plan = replace(plan, ranges=options.ranges)
    return _unless_too_little(plan, problem, options) if strategy.is_cost_aware else plan


def pad_limits(imported: Imported, options: Options) -> PadLimits:
    """Say what may be padded: constants in the file, and axes whose size is fixed."""
    return PadLimits(
        threshold_us=options.pad_threshold_us,
        stored=frozenset(name for name, tensor in imported.constants.items() if not is_external(tensor)),
        open_axes=open_axes(imported, with_examples(imported.model, options.dims)),
    )


def _unless_too_little(plan: Plan, problem: Problem, options: Options) -> Plan:
    low = problem.low_unchanged
    given_us = problem.predicted_us(low)
    saved_us = given_us - plan.predicted_us
    if plan.low_nodes == low or saved_us >= options.min_gain * given_us:
        return plan
    left = stays(
        problem,
        options,
        low,
        Reason.MIN_GAIN.of(
            low=plan.low.value.upper(), saved_share=saved_us / given_us, asked_share=options.min_gain
        ),
    )
    return replace(left, lower_bound_us=plan.lower_bound_us)


def stays(problem: Problem, options: Options, low: frozenset[str], verdict: Verdict) -> Plan:
    """Plan to change nothing: to leave these nodes low and all others in FP32, for a given reason."""
    answer = replace(all_fp32(problem, verdict), low=low)
    return make_plan(problem, answer, strategy=options.strategy, lists=options.lists.name)


def apply(plan: Plan, problem: Problem, imported: Imported) -> Optimized:
    """Rewrite the graph as planned.

    A stamped graph stays as it is, and so do one lowered in vain and one of which what is low stays low.
    """
    if problem.starts_low and plan.low_nodes == problem.low_as_given and not plan.pads:
        assert imported.as_given is not None
        model = imported.as_given.model
    elif imported.given is not None and not plan.low_nodes:
        model = imported.given.model
    else:
        model = imported.model if imported.stamp is not None else rewrite(imported, plan)
    return Optimized(model=model, plan=plan, problem=problem, imported=imported)
