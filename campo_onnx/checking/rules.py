"""The rules for a mixed graph, each a plain function of :class:`CheckContext`.

The first rule is that the graph is a valid model. The others need one that is, so
:mod:`campo_onnx.checking.check` evaluates the first as it reads the file.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.checking.context import CheckContext
from campo_onnx.checking.verdict import Finding, Status, failed, not_asked, not_checked, passed
from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.loss_scale import loss_scaling, low_gradients
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.reason import Reason
from campo_onnx.optimize.safety import earlier_versions, protected
from campo_onnx.runtime.feeds import read_feeds, synthesize
from campo_onnx.runtime.pieces import run_in_pieces
from campo_onnx.runtime.providers import machine
from campo_onnx.training.drift import Reference, most_drift
from campo_onnx.training.numerics import emulate, seeded, without_underflow

_SHOWN = 3
_LOSS_SCALE = 1024.0  # of generated inputs
_CERTAIN = frozenset({Reason.USER, Reason.OVERFLOW, Reason.VALUE_OVERFLOW})
_ROUNDING = 1e-9  # both predictions are sums, in different order


def loadable(context: CheckContext) -> Finding:
    """ONNX Runtime loads the mixed graph."""
    if not context.load_error:
        return passed("ONNX Runtime's CPU provider loads it")
    if context.fp32_load_error:
        return not_checked(
            f"ONNX Runtime here does not load the FP32 graph either: {context.fp32_load_error}"
        )
    if context.changes.low is Precision.BF16:
        # FP16 nodes run as FP32 there; BF16 nodes have few kernels and no such fallback.
        return not_checked(f"ONNX Runtime's CPU provider lacks BF16 kernels: {context.load_error}")
    return failed(f"ONNX Runtime does not load it: {context.load_error}")


def interface(context: CheckContext) -> Finding:
    """Inputs and outputs keep name, type, shape and order."""
    changes = context.interface_changes
    if changes:
        return failed(_some(changes), value=len(changes), limit=0)
    graph = context.fp32.model.graph
    return passed(f"{len(graph.input)} inputs and {len(graph.output)} outputs are unchanged")


def fp32(context: CheckContext) -> Finding:
    """Deny operators, the loss, the weight update and nodes named in the policy are FP32."""
    reasons = _must_be_fp32(context)
    broken = [name for name in reasons if name in context.changes.low_nodes]
    if broken:
        low = context.changes.low.value
        named = _some([f"{name!r} ({reasons[name]})" for name in broken])
        return failed(f"{len(broken)} nodes that must be FP32 are {low}: {named}", value=len(broken), limit=0)
    return passed(f"all {len(reasons)} nodes that must be FP32 are", value=0, limit=0)


def _must_be_fp32(context: CheckContext) -> dict[str, str]:
    """Reason by node name."""
    problem = context.problem
    classes = problem.classification.classes
    reasons = {
        name: found.finding or f"{problem.view.node[name].op.label} is deny"
        for name, found in classes.items()
        if found.op_class is OpClass.DENY
    }
    reasons |= {name: v.reason for name, v in problem.fixed.items() if v.decided_by in _CERTAIN}
    kept = protected(problem.view, context.policy.lists)
    return reasons | {name: reason.sentence for name, reason in kept.items()}


def drift(context: CheckContext) -> Finding:
    """The loss, every gradient and every other output stay close to FP32's."""
    if context.interface_changes:
        return not_checked("the interface changed, so the graphs cannot be run on the same inputs")
    if context.fp32_load_error:
        return not_checked(f"ONNX Runtime here does not load the FP32 graph: {context.fp32_load_error}")
    try:
        emulated = seeded(emulate(context.mixed.model, context.policy.dims))
        batches = _batches(context)
    except UnsupportedModelError as error:
        return not_checked(str(error))
    view, given = context.fp32.view, seeded(context.fp32.model)
    references = {
        title: Reference(
            model=given,
            feeds=feeds,
            earlier=earlier_versions(view),
            machine=machine("cpu"),
            folder=context.fp32.folder,
        )
        for title, feeds in batches
    }
    titles = ", ".join(references)
    for title, reference in references.items():
        try:
            expected = reference.outputs
        except UsageError as error:
            return not_checked(str(error))
        except ModelError as error:
            return not_checked(f"the FP32 step itself fails on {title}: {error.why}")
        if not_finite := _not_finite(expected):
            return not_checked(f"the FP32 step itself is not finite in {not_finite!r} on {title}")
    try:
        worst = _worst(emulated, references, context)
        own = context.policy.max_drift
        limit = most_drift(context.changes.low) if own is None else own
        finding = _drift_finding(worst, limit, titles)
        if finding.status is not Status.FAILED or not _lacks_loss_scale(context):
            return finding
        scaled = _drift_finding(_worst(without_underflow(emulated), references, context), limit, titles)
    except UsageError as error:
        return not_checked(str(error))
    except (ModelError, UnsupportedModelError) as error:
        return failed(f"the mixed step, emulated, does not run on {titles}: {error.why}")
    beyond = sum(error > limit for error in worst.values())
    reason = (
        f"{scaled.reason}. This is with the loss scaled as training in {context.changes.low.value} needs "
        f"it: the graph has no loss scale, and without one {beyond} outputs are off by over {limit:g}, up to "
        f"{max(worst.values()):.2g}. Export the step with a loss scale"
    )
    return replace(scaled, reason=reason)


def _worst(
    model: onnx.ModelProto, references: Mapping[str, Reference], context: CheckContext
) -> dict[str, float]:
    worst: dict[str, float] = {}
    for reference in references.values():
        actual = run_in_pieces(model, reference.feeds, reference.machine, folder=context.mixed.folder)
        for name, error in reference.drift_of(actual).items():
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _lacks_loss_scale(context: CheckContext) -> bool:
    """Whether FP16 gradients of this graph vanish for want of a loss scale."""
    if context.changes.low is not Precision.FP16:
        return False
    view = context.fp32.view
    return bool(low_gradients(view, loss_scaling(view), context.changes.low_nodes))


def _drift_finding(worst: dict[str, float], limit: float, title: str) -> Finding:
    ranked = sorted(worst, key=lambda name: -worst[name])
    largest = max(worst.values(), default=0.0)
    beyond = [f"{name!r} {worst[name]:.2g}" for name in ranked if worst[name] > limit]
    if beyond:
        finding = failed(
            f"{len(beyond)} of {len(worst)} outputs are off by over {limit:g} on {title}: {_some(beyond)}",
            value=largest,
            limit=limit,
        )
        return replace(finding, parts=worst)
    at = f" ({ranked[0]!r})" if largest else ""
    reason = f"at most {largest:.2g}{at} over {len(worst)} outputs on {title}; {limit:g} is allowed"
    return replace(passed(reason, value=largest, limit=limit), parts=worst)


def _batches(context: CheckContext) -> list[tuple[str, dict[str, NDArray[Any]]]]:
    view = context.fp32.view
    if context.policy.inputs:
        return [(path.name, read_feeds(path, view)) for path in context.policy.inputs]
    within = {name: (known.lowest, known.highest) for name, known in context.ranges.items()}
    made = synthesize(view, within=within)
    scale = loss_scaling(view).scale
    if scale in made and scale not in within:
        made[scale] = np.full_like(made[scale], _LOSS_SCALE)
    return [("generated inputs", made)]


def _not_finite(arrays: Mapping[str, NDArray[Any]]) -> str:
    floats = {name: value for name, value in arrays.items() if np.issubdtype(value.dtype, np.floating)}
    return next((name for name, value in floats.items() if not np.isfinite(value).all()), "")


def plan_fits(context: CheckContext) -> Finding:
    """The committed plan was made for the FP32 graph as it is now."""
    if context.plan is None:
        return not_asked("the policy names no baseline")
    if context.plan_fits:
        return passed("the baseline was made for this graph")
    return failed("the baseline was made for another graph: nodes, shapes or attributes changed since")


def casts(context: CheckContext) -> Finding:
    """No more Casts than the policy and the committed plan allow."""
    policy, count = context.policy, len(context.changes.casts)
    limits = [] if policy.max_casts is None else [(policy.max_casts, "the policy")]
    if context.baseline is not None:
        limits.append((context.baseline.casts, "the baseline"))
    if not limits:
        return _without_baseline(context, "the policy sets no limit")
    limit, whose = min(limits)
    if count > limit:
        return failed(f"{count} casts were inserted; {whose} allows {limit}", value=count, limit=limit)
    return passed(f"{count} casts were inserted; {whose} allows {limit}", value=count, limit=limit)


def step(context: CheckContext) -> Finding:
    """The predicted step is not longer than the committed plan's."""
    if context.baseline is None:
        return _without_baseline(context, "the policy names no baseline")
    now_us, then_us = context.step_us, context.baseline.step_us
    reason = f"predicted {now_us:,.1f} us on {context.device.name}; the baseline takes {then_us:,.1f} us"
    finding = passed if now_us <= then_us * (1 + _ROUNDING) else failed
    return finding(reason, value=now_us, limit=then_us)


def gain(context: CheckContext) -> Finding:
    """The predicted speed-up over FP32 is at least what the policy requires."""
    limit = context.policy.min_speedup
    speedup = context.fp32_us / context.step_us if context.step_us else 1.0
    reason = (
        f"predicted {speedup:.3g}x on {context.device.name} "
        f"({context.fp32_us:,.1f} us -> {context.step_us:,.1f} us); {limit:g}x is required"
    )
    finding = passed if speedup >= limit * (1 - _ROUNDING) else failed
    return finding(reason, value=speedup, limit=limit)


def _without_baseline(context: CheckContext, reason: str) -> Finding:
    if context.plan is None:
        return not_asked(reason)
    return not_checked("the baseline does not fit the graph")


def _some(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")


class Rule(NamedTuple):
    """A rule under the name it has in reports."""

    name: str
    check: Callable[[CheckContext], Finding]


VALID = "valid"
"""The rule that is evaluated first, as the file is read."""

RULES = (
    Rule("loadable", loadable),
    Rule("interface", interface),
    Rule("fp32", fp32),
    Rule("drift", drift),
    Rule("plan", plan_fits),
    Rule("casts", casts),
    Rule("step", step),
    Rule("gain", gain),
)
"""The other rules, in the order of reports."""
