"""The rules a mixed graph is held against, each a plain function of what is under check.

Whether the graph is a valid model is rule number one; the others can only be asked of one that is,
so :mod:`campo_onnx.checking.check` answers that one as it reads the file.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from campo_onnx.checking.subject import Subject
from campo_onnx.checking.verdict import Finding, failed, not_asked, not_checked, passed
from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.safety import protected
from campo_onnx.runtime.feeds import read_feeds, synthesize
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run
from campo_onnx.training.numerics import drift_of, emulate, seeded

_SHOWN = 3
_ROUNDING = 1e-9  # predictions are sums in another order


def loadable(subject: Subject) -> Finding:
    """ONNX Runtime loads the mixed graph."""
    if not subject.refusal:
        return passed("ONNX Runtime's CPU provider loads it")
    if subject.given_refusal:
        return not_checked(f"ONNX Runtime here does not load the FP32 graph either: {subject.given_refusal}")
    if subject.pairing.low is Precision.BF16:
        # FP16 nodes run as FP32 there; BF16 nodes have few kernels, and nothing stands in.
        return not_checked(f"ONNX Runtime's CPU provider lacks BF16 kernels: {subject.refusal}")
    return failed(f"ONNX Runtime does not load it: {subject.refusal}")


def interface(subject: Subject) -> Finding:
    """Inputs and outputs keep name, type, shape and order."""
    changes = subject.interface_changes
    if changes:
        return failed(_some(changes), value=len(changes), limit=0)
    graph = subject.given.model.graph
    return passed(f"{len(graph.input)} inputs and {len(graph.output)} outputs are as they were")


def fp32(subject: Subject) -> Finding:
    """Deny operators, the loss, the weight update and what the policy keeps are FP32."""
    reasons = _must_be_fp32(subject)
    broken = [name for name in reasons if name in subject.pairing.low_nodes]
    if broken:
        low = subject.pairing.low.value
        named = _some([f"{name!r} ({reasons[name]})" for name in broken])
        return failed(
            f"{len(broken)} nodes are {low} that have to be FP32: {named}", value=len(broken), limit=0
        )
    return passed(f"{len(reasons)} nodes that have to be FP32 are", value=0, limit=0)


def _must_be_fp32(subject: Subject) -> dict[str, str]:
    """Reason by node name."""
    problem = subject.problem
    classes = problem.classification.classes
    reasons = {
        name: found.reason or f"{problem.view.node[name].op.label} is deny"
        for name, found in classes.items()
        if found.op_class is OpClass.DENY
    }
    reasons |= {name: v.reason for name, v in problem.fixed.items() if v.decided_by == "user"}
    return reasons | dict(protected(problem.view, subject.policy.lists))


def drift(subject: Subject) -> Finding:
    """The loss, every gradient and every other output stay close to FP32's."""
    if subject.interface_changes:
        return not_checked("the interface changed, so the graphs cannot be run on the same inputs")
    if subject.given_refusal:
        return not_checked(f"ONNX Runtime here does not load the FP32 graph: {subject.given_refusal}")
    try:
        emulated = seeded(emulate(subject.mixed.model, subject.policy.dims))
        batches = _batches(subject)
    except UnsupportedModelError as refusal:
        return not_checked(str(refusal))
    here, given = machine("cpu"), seeded(subject.given.model)
    worst: dict[str, float] = {}
    for title, feeds in batches:
        try:
            expected = run(given, feeds, here, folder=subject.given.folder)
        except ModelError as stop:
            return not_checked(f"the FP32 step itself fails on {title}: {stop.why}")
        if unfinite := _unfinite(expected):
            return not_checked(f"the FP32 step itself is not finite in {unfinite!r} on {title}")
        try:
            actual = run(emulated, feeds, here, folder=subject.mixed.folder)
        except (ModelError, UnsupportedModelError) as stop:
            return failed(f"the mixed step, emulated, does not run on {title}: {stop.why}")
        for name, error in drift_of(actual, expected).items():
            worst[name] = max(worst.get(name, 0.0), error)
    return _drift_finding(worst, subject.policy.max_drift, ", ".join(title for title, _ in batches))


def _drift_finding(worst: dict[str, float], limit: float, title: str) -> Finding:
    ranked = sorted(worst, key=lambda name: -worst[name])
    largest = max(worst.values(), default=0.0)
    beyond = [f"{name!r} {worst[name]:.2g}" for name in ranked if worst[name] > limit]
    if beyond:
        return failed(
            f"{len(beyond)} of {len(worst)} outputs are beyond {limit:g} on {title}: {_some(beyond)}",
            value=largest,
            limit=limit,
        )
    at = f" ({ranked[0]!r})" if largest else ""
    reason = f"at most {largest:.2g}{at} over {len(worst)} outputs on {title}; {limit:g} is allowed"
    return passed(reason, value=largest, limit=limit)


def _batches(subject: Subject) -> list[tuple[str, dict[str, NDArray[Any]]]]:
    view = subject.given.view
    if subject.policy.inputs:
        return [(path.name, read_feeds(path, view)) for path in subject.policy.inputs]
    return [("generated inputs", synthesize(view))]


def _unfinite(arrays: dict[str, NDArray[Any]]) -> str:
    floats = {name: value for name, value in arrays.items() if np.issubdtype(value.dtype, np.floating)}
    return next((name for name, value in floats.items() if not np.isfinite(value).all()), "")


def plan_fits(subject: Subject) -> Finding:
    """The committed plan was made for the FP32 graph as it is now."""
    if subject.plan is None:
        return not_asked("the policy names no baseline")
    if subject.plan_fits:
        return passed("the baseline was made for this very graph")
    return failed("the baseline was made for another graph: nodes, shapes or attributes changed since")


def casts(subject: Subject) -> Finding:
    """No more Casts than the policy and the committed plan allow."""
    policy, count = subject.policy, len(subject.pairing.casts)
    limits = [] if policy.max_casts is None else [(policy.max_casts, "the policy")]
    if subject.baseline is not None:
        limits.append((subject.baseline.casts, "the baseline"))
    if not limits:
        return _without_baseline(subject, "the policy sets no limit")
    limit, whose = min(limits)
    if count > limit:
        return failed(f"{count} casts were inserted; {whose} allows {limit}", value=count, limit=limit)
    return passed(f"{count} casts were inserted; {whose} allows {limit}", value=count, limit=limit)


def step(subject: Subject) -> Finding:
    """The predicted step is not longer than the committed plan's."""
    if subject.baseline is None:
        return _without_baseline(subject, "the policy names no baseline")
    now_us, then_us = subject.step_us, subject.baseline.step_us
    reason = f"predicted {now_us:,.1f} us on {subject.device.name}; the baseline comes to {then_us:,.1f} us"
    judged = passed if now_us <= then_us * (1 + _ROUNDING) else failed
    return judged(reason, value=now_us, limit=then_us)


def gain(subject: Subject) -> Finding:
    """The predicted speed-up over FP32 is what the policy asks for."""
    limit = subject.policy.min_speedup
    speedup = subject.fp32_us / subject.step_us if subject.step_us else 1.0
    reason = (
        f"predicted {speedup:.3g}x on {subject.device.name} "
        f"({subject.fp32_us:,.1f} us -> {subject.step_us:,.1f} us); {limit:g}x is asked"
    )
    judged = passed if speedup >= limit * (1 - _ROUNDING) else failed
    return judged(reason, value=speedup, limit=limit)


def _without_baseline(subject: Subject, reason: str) -> Finding:
    if subject.plan is None:
        return not_asked(reason)
    return not_checked("the baseline does not fit the graph")


def _some(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")


class Rule(NamedTuple):
    """A rule, and the name that reports call it by."""

    name: str
    judge: Callable[[Subject], Finding]


VALID = "valid"
"""The rule that is answered first, as the file is read."""

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
