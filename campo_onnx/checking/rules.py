"""The rules for a mixed graph, each a plain function of :class:`CheckContext`.

The first rule is that the graph is a valid model. The others need one that is, so
:mod:`campo_onnx.checking.check` evaluates the first as it reads the file.
"""

from collections.abc import Callable
from typing import NamedTuple

from campo_onnx.checking.closeness import drift
from campo_onnx.checking.context import CheckContext
from campo_onnx.checking.verdict import Finding, failed, listed, not_asked, not_checked, passed
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.safety import protected

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
        return failed(listed(changes), value=len(changes), limit=0)
    graph = context.fp32.model.graph
    return passed(f"{len(graph.input)} inputs and {len(graph.output)} outputs are unchanged")


def fp32(context: CheckContext) -> Finding:
    """Deny operators, the loss, the weight update and nodes named in the policy are FP32."""
    reasons = _must_be_fp32(context)
    broken = [name for name in reasons if name in context.changes.low_nodes]
    if broken:
        low = context.changes.low.value
        named = listed([f"{name!r} ({reasons[name]})" for name in broken])
        return failed(f"{len(broken)} nodes that must be FP32 are {low}: {named}", value=len(broken), limit=0)
    return passed(f"all {len(reasons)} nodes that must be FP32 are", value=0, limit=0)


def _must_be_fp32(context: CheckContext) -> dict[str, str]:
    """Reason by node name."""
    problem = context.problem
    classes = problem.classification.classes
    reasons = {
        name: node_class.finding or f"{problem.view.node[name].op.label} is deny"
        for name, node_class in classes.items()
        if node_class.op_class is OpClass.DENY
    }
    if not problem.kind.has_nothing_to_protect:
        for_safety = protected(problem.view, context.policy.lists)
        reasons |= {name: reason.sentence for name, reason in for_safety.items()}
    # Whoever made a file low decided about lists and losses in it; values and the policy hold all the same.
    reasons = {name: why for name, why in reasons.items() if name not in problem.low_as_given}
    return reasons | {n: v.reason for n, v in problem.fixed.items() if v.decided_by in _CERTAIN}


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
    reason = f"predicted {now_us:,.1f} us on {context.target.name}; the baseline takes {then_us:,.1f} us"
    finding = passed if now_us <= then_us * (1 + _ROUNDING) else failed
    return finding(reason, value=now_us, limit=then_us)


def gain(context: CheckContext) -> Finding:
    """The predicted speed-up over FP32 is at least what the policy requires."""
    limit = context.policy.min_speedup
    speedup = context.fp32_us / context.step_us if context.step_us else 1.0
    reason = (
        f"predicted {speedup:.3g}x on {context.target.name} "
        f"({context.fp32_us:,.1f} us -> {context.step_us:,.1f} us); {limit:g}x is required"
    )
    if speedup >= limit * (1 - _ROUNDING):
        return passed(reason, value=speedup, limit=limit)
    return failed(reason + _other_prediction(context), value=speedup, limit=limit)


def _other_prediction(context: CheckContext) -> str:
    """Say what the graph's own plan predicted, if that would have passed: it may have had measured times."""
    stamp = context.mixed.stamp
    if stamp is None or stamp.fp32_us is None or not stamp.predicted_us or context.problem.low_as_given:
        return ""  # of a file that was low, the plan says what it gains over FP32, and not over the file
    then = stamp.fp32_us / stamp.predicted_us
    if stamp.device != context.target.name or then < context.policy.min_speedup:
        return ""
    return (
        f"; the plan that made it predicted {then:.3g}x, from measured times or by another version of "
        "campo-onnx, where a check goes by the device's data sheet"
    )


def _without_baseline(context: CheckContext, reason: str) -> Finding:
    if context.plan is None:
        return not_asked(reason)
    return not_checked("the baseline does not fit the graph")


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
