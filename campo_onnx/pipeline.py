"""The straight line: import, classify, cost, decide, rewrite."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx

from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.costs.table import CostTable
from campo_onnx.devices.device import Device
from campo_onnx.errors import UsageError
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.classify import classify
from campo_onnx.optimize.eligibility import OVERFLOW, fixed_nodes
from campo_onnx.optimize.oplists import OpLists
from campo_onnx.optimize.padding.alignment import open_axes
from campo_onnx.optimize.padding.choose import PadLimits, pad, with_padding
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.planning import make_plan
from campo_onnx.optimize.problem import Problem, Verdict, edges_of_graph
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.optimize.safety import protected, weight_update
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, STRATEGIES
from campo_onnx.optimize.strategies.fine_grained import fine_grained
from campo_onnx.optimize.strategies.fp32 import all_fp32, fp32

COST_AWARE = frozenset({"optimal", "campo"})
"""Strategies that zero-pad and return FP32 where too little is won; the others are systems that do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to decide with.

    Parameters
    ----------
    device
        The device to plan for.
    lists
        The op lists.
    strategy
        Name of a strategy.
    margin_us
        For the strategy fine-grained: by how much FP32 must win to be kept.
    low
        The low precision.
    keep_fp32
        Regular expressions for node names or operators that stay FP32.
    dims
        Sizes of symbolic dimensions.
    costs, evidence
        Where costs come from, and what is known beside the device's figures.
    pads, pad_threshold_us
        Whether strategies that decide by costs may zero-pad products to fit tensor cores, and what
        that must gain per node beyond its predicted cost.
    min_gain
        Share of the FP32 step that a cost-aware strategy must be predicted to save; below it the graph
        stays FP32, since no cost is known better.
    forbidden, released
        What data says (:mod:`campo_onnx.data_safety`): nodes that would break, with the
        reason, and tainted nodes that are shown harmless.
    """

    device: Device
    lists: OpLists
    strategy: str = DEFAULT_STRATEGY
    margin_us: float = 1000.0
    low: Precision = Precision.FP16
    keep_fp32: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    costs: CostSource = CostSource.DATASHEET
    evidence: Evidence = field(default_factory=Evidence)
    pads: bool = True
    pad_threshold_us: float = 0.0
    min_gain: float = 0.01
    forbidden: Mapping[str, str] = field(default_factory=dict)
    released: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """What :func:`optimize` returns.

    Parameters
    ----------
    model
        The mixed-precision model; the given one where nothing was worth changing.
    plan
        Every decision.
    problem
        What was decided about, with costs and classes: reports and explanations read it.
    imported
        The given model as imported.
    """

    model: onnx.ModelProto
    plan: Plan
    problem: Problem
    imported: Imported

    @property
    def was_optimized_before(self) -> bool:
        """Whether the given model was a result of campo-onnx already, so that nothing changed."""
        return self.imported.stamp is not None


def optimize(source: str | Path | onnx.ModelProto, options: Options) -> Optimized:
    """Turn an exported FP32 training graph into a mixed-precision one.

    Parameters
    ----------
    source
        Path of the model, or the model itself, which is not changed.
    options
        What to decide with.

    Raises
    ------
    campo_onnx.errors.CampoError
        For anything wrong with the model or the options; see its subclasses.
    """
    imported = import_model(source, options.dims)
    problem = pose(imported, options)
    plan = decide(problem, imported, options)
    return carry_out(plan, problem, imported)


def carry_out(plan: Plan, problem: Problem, imported: Imported) -> Optimized:
    """Rewrite the graph as planned; a stamped graph stays as it is."""
    model = imported.model if imported.stamp is not None else rewrite(imported, plan)
    return Optimized(model=model, plan=plan, problem=problem, imported=imported)


def pose(imported: Imported, options: Options) -> Problem:
    """Pose the question: classes, costs, and what is not up for decision."""
    view = imported.view
    ports = {node.name: ports_of(view.signature(node.name), options.low) for node in view.nodes}
    fixed = fixed_nodes(
        imported,
        ports,
        low=options.low,
        provider=options.device.provider,
        protected=protected(view, options.lists),
        keep_fp32=options.keep_fp32,
    )
    broken = {
        name: Verdict(decided_by="data", reason=reason)
        for name, reason in options.forbidden.items()
        if name not in fixed
    }
    overflowing = {name: v.reason for name, v in fixed.items() if v.decided_by == OVERFLOW}
    costs = _costs(view, ports, options)
    return Problem(
        view=view,
        low=options.low,
        classification=replace(
            classify(view, options.lists, weight_update(view), overflowing), released=options.released
        ),
        ports=ports,
        fixed={**fixed, **broken},
        costs=costs,
        edges=edges_of_graph(view, ports, costs, options.low),
    )


def repriced(problem: Problem, costs: CostTable) -> Problem:
    """Pose the same question with other costs."""
    edges = edges_of_graph(problem.view, problem.ports, costs, problem.low)
    return replace(problem, costs=costs, edges=edges)


def _costs(view: GraphView, ports: Mapping[str, Ports], options: Options) -> CostTable:
    if options.costs is CostSource.DATASHEET:
        return estimate(view, ports, options.device, options.low)
    # Measuring needs ONNX Runtime, scipy and polars; planning from public figures does not.
    from campo_onnx.costs.choose import costs_for

    return costs_for(view, ports, options.device, options.low, options.costs, options.evidence)


def decide(problem: Problem, imported: Imported, options: Options) -> Plan:
    """Answer the question with the chosen strategy; a stamped graph keeps its earlier answer."""
    if options.strategy not in STRATEGIES:
        raise UsageError(
            f"{options.strategy!r} is no strategy", remedy=f"Choose one of: {', '.join(STRATEGIES)}."
        )
    stamp = imported.stamp
    if stamp is not None:
        return make_plan(problem, fp32(problem), strategy=stamp.strategy, lists=stamp.lists)
    strategy = STRATEGIES[options.strategy]
    if strategy is fine_grained:
        strategy = partial(fine_grained, margin_us=options.margin_us)
    is_cost_aware = options.strategy in COST_AWARE
    pads = options.pads and is_cost_aware
    limits = _pad_limits(imported, options)
    answer = strategy(with_padding(problem, options.device, limits) if pads else problem)
    plan = make_plan(problem, answer, strategy=options.strategy, lists=options.lists.name)
    if pads:
        plan = pad(problem, plan, options.device, limits)
    return _unless_too_little(plan, problem, options) if is_cost_aware else plan


def stay_fp32(problem: Problem, options: Options, verdict: Verdict) -> Plan:
    """Plan to change nothing, for a given reason."""
    return make_plan(problem, all_fp32(problem, verdict), strategy=options.strategy, lists=options.lists.name)


def _unless_too_little(plan: Plan, problem: Problem, options: Options) -> Plan:
    saved_us = plan.fp32_us - plan.predicted_us
    if not plan.low_nodes or saved_us >= options.min_gain * plan.fp32_us:
        return plan
    share = saved_us / plan.fp32_us
    reason = f"{plan.low} would save {share:.1%} of the step; {options.min_gain:.1%} is asked for"
    return stay_fp32(problem, options, Verdict(decided_by="min-gain", reason=reason))


def _pad_limits(imported: Imported, options: Options) -> PadLimits:
    return PadLimits(
        threshold_us=options.pad_threshold_us,
        stored=frozenset(name for name, tensor in imported.constants.items() if not is_external(tensor)),
        open_axes=open_axes(imported, options.dims),
    )
