"""The rule that compares what both steps compute."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.checking.context import CheckContext
from campo_onnx.checking.verdict import Finding, Status, failed, listed, not_checked, passed
from campo_onnx.emulation.batches import Batch, draw_batches
from campo_onnx.emulation.drift import Reference, most_drift, unfinite_in
from campo_onnx.emulation.faults import MOST_BY_CHOICE, ROUNDING_AND_LAYERS
from campo_onnx.emulation.numerics import emulate, seeded, without_underflow
from campo_onnx.emulation.scale_search import LOSS_SCALE, settled_scale
from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.work import WorkKind
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.optimize.values.loss_scale import gradient_outputs, loss_scaling, low_gradients
from campo_onnx.runtime.chunked_run import run_in_pieces
from campo_onnx.runtime.feeds import Feeds, read_feeds
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.registry import machine


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
    view, model = context.fp32.view, seeded(context.fp32.model)
    references: dict[str, Reference] = {}
    for title, feeds, _ in batches:
        reference = Reference(
            model=model,
            feeds=feeds,
            earlier=earlier_versions(view),
            machine=machine(CPU),
            folder=context.fp32.folder,
        )
        try:
            not_finite = unfinite_in(reference.outputs)
            why = f"the FP32 step itself is not finite in {not_finite!r} on {title}" if not_finite else ""
        except UsageError as error:
            return not_checked(str(error))
        except ModelError as error:
            why = f"the FP32 step itself fails on {title}: {error.why}"
        if not why:
            references[title] = reference
        elif context.policy.inputs or not references:
            return not_checked(why)
    titles = ", ".join(references)
    try:
        return _with_zeros(*_compared(emulated, references, context), context)
    except UsageError as error:
        return not_checked(str(error))
    except (ModelError, UnsupportedModelError) as error:
        return failed(f"the mixed step, emulated, does not run on {titles}: {error.why}")


def _compared(
    emulated: onnx.ModelProto, references: Mapping[str, Reference], context: CheckContext
) -> tuple[Finding, Mapping[str, Reference]]:
    """Compare the steps; gives the references that counted, too, at the loss scale of the end."""
    titles, low = ", ".join(references), context.changes.low
    own = context.policy.max_drift
    limit = most_drift(low) if own is None else own
    worst = _worst(emulated, references, context)
    finding = _drift_finding(worst, limit, titles)
    if finding.status is not Status.FAILED:
        return finding, references
    if settled := _at_settled_scale(emulated, references, context):
        references, titles = settled, ", ".join(settled)
        worst = _worst(emulated, references, context)
        finding = _drift_finding(worst, limit, titles)
        if finding.status is not Status.FAILED:
            return finding, references
    if not _lacks_loss_scale(context):
        return _but_for_choices(finding, worst, limit, references, context), references
    scaled_worst = _worst(without_underflow(emulated), references, context)
    scaled = _drift_finding(scaled_worst, limit, titles)
    if scaled.status is Status.FAILED:
        scaled = _but_for_choices(scaled, scaled_worst, limit, references, context)
    beyond = sum(error > limit for error in worst.values())
    reason = (
        f"{scaled.reason}. This is with the loss scaled as training in {low.value} needs it: the graph has "
        f"no loss scale, and without one {beyond} outputs are off by over {limit:g}, up to "
        f"{max(worst.values()):.2g}. Export the step with a loss scale"
    )
    return replace(scaled, reason=reason), references


def _with_zeros(finding: Finding, references: Mapping[str, Reference], context: CheckContext) -> Finding:
    """Say which outputs FP32 itself knows nothing of on some batch: low precision may lose them there."""
    off = {name for name, error in finding.parts.items() if error}
    zeros = {
        name
        for title, reference in references.items()
        for name in (off & reference.zero_but_for_rounding) - _left_out(title, references, context)
        if np.any(reference.outputs[name])
    }
    if not zeros:
        return finding
    several = f"{len(zeros)} outputs are" if len(zeros) > 1 else "1 output is"
    reason = (
        f"{finding.reason}. {several} zero but for rounding in FP32, too, and held against all that low "
        f"precision loses there: {listed(map(repr, sorted(zeros)))}"
    )
    return replace(finding, reason=reason)


def _at_settled_scale(
    emulated: onnx.ModelProto, references: Mapping[str, Reference], context: CheckContext
) -> dict[str, Reference]:
    """The first drawn batch with the loss scale that training ends with; nothing where that is as it was."""
    view = context.fp32.view
    scaling = loss_scaling(view)
    scale = scaling.scale
    if context.policy.inputs or context.changes.low is not Precision.FP16:
        return {}
    if scale is None or scale not in view.inputs or scale in context.ranges:
        return {}
    (title, first), *others = references.items()
    gradients = gradient_outputs(view, scaling)

    def feeds(value: float) -> Feeds:
        return {**first.feeds, scale: np.full_like(first.feeds[scale], value)}

    def overflows(value: float) -> bool:
        outputs = run_in_pieces(emulated, feeds(value), first.machine, folder=context.mixed.folder)
        behind = ((array, first.outputs[name]) for name, array in outputs if name in gradients)
        return any(_tells_overflow(actual, expected) for actual, expected in behind)

    settled = settled_scale(overflows, first_overflows=overflows(LOSS_SCALE))
    if settled == LOSS_SCALE:
        return {}
    title = f"{title} (loss scale {settled:,.0f}, with which training ends)"
    return {title: replace(first, feeds=feeds(settled)), **dict(others)}


def _tells_overflow(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether a gradient is not finite, or a flag such as `grads_finite` differs from FP32's."""
    if actual.dtype == np.bool_:
        return not np.array_equal(actual, expected)
    return actual.dtype.kind == "f" and not np.isfinite(actual).all()


def _but_for_choices(
    finding: Finding,
    worst: Mapping[str, float],
    limit: float,
    references: Mapping[str, Reference],
    context: CheckContext,
) -> Finding:
    """Leave out outputs that no low precision gets closer: roundings are magnified, or choose otherwise.

    A limit that the policy sets is meant as it stands.
    """
    if context.policy.max_drift is not None:
        return finding
    low = context.changes.low
    chosen = [
        {
            name: e
            for name, e in r.error_of_rounding(low).items()
            if name not in _left_out(t, references, context)
        }
        for t, r in references.items()
    ]
    close = {}
    for name, error in worst.items():
        own = min((errors[name] for errors in chosen if name in errors), default=0.0)
        # An FP32 step that overflows on rounded inputs says nothing of how close one may come.
        allowed = min(ROUNDING_AND_LAYERS * own, MOST_BY_CHOICE) if np.isfinite(own) else 0.0
        if limit < error <= allowed:
            close[name] = error
    if not close:
        return finding
    others = _drift_finding({n: e for n, e in worst.items() if n not in close}, limit, ", ".join(references))
    name = max(close, key=lambda output: close[output])
    several = f"{len(close)} more outputs, the farthest {name!r} with {close[name]:.2g}, are"
    if len(close) == 1:
        several = f"1 more output, {name!r} with {close[name]:.2g}, is"
    reason = (
        f"{others.reason}. {several} within {ROUNDING_AND_LAYERS:g} times what the FP32 step itself is "
        f"off by when its inputs are rounded to {low.value}: it magnifies roundings, or chooses otherwise "
        f"(ReLU, max pooling)"
    )
    return replace(others, reason=reason, parts=worst)


def _worst(
    model: onnx.ModelProto, references: Mapping[str, Reference], context: CheckContext
) -> dict[str, float]:
    worst: dict[str, float] = {}
    for title, reference in references.items():
        left_out = _left_out(title, references, context)
        actual = run_in_pieces(model, reference.feeds, reference.machine, folder=context.mixed.folder)
        for name, error in reference.drift_of(actual).items():
            if name in left_out:
                continue
            # The last digits of a norm depend on where its array lies in memory.
            worst[name] = max(worst.get(name, 0.0), float(f"{error:.9g}"))
    return worst


def _left_out(title: str, references: Mapping[str, Reference], context: CheckContext) -> frozenset[str]:
    """Outputs that say nothing: gradients of drawn rows that are extreme overflow the usual loss scale."""
    if context.policy.inputs or title == next(iter(references)):
        return frozenset()
    view = context.fp32.view
    return gradient_outputs(view, loss_scaling(view))


def _lacks_loss_scale(context: CheckContext) -> bool:
    """Whether FP16 gradients of this graph vanish for want of a loss scale."""
    if context.changes.low is not Precision.FP16 or not context.problem.kind.trains:
        return False
    view = context.fp32.view
    return bool(low_gradients(view, loss_scaling(view), context.changes.low_nodes))


def _drift_finding(worst: dict[str, float], limit: float, title: str) -> Finding:
    ranked = sorted(worst, key=lambda name: -worst[name])
    largest = max(worst.values(), default=0.0)
    beyond = [f"{name!r} {worst[name]:.2g}" for name in ranked if worst[name] > limit]
    if beyond:
        finding = failed(
            f"{len(beyond)} of {len(worst)} outputs are off by over {limit:g} on {title}: {listed(beyond)}",
            value=largest,
            limit=limit,
        )
        return replace(finding, parts=worst)
    at = f" ({ranked[0]!r})" if largest else ""
    reason = f"at most {largest:.2g}{at} over {len(worst)} outputs on {title}; {limit:g} is allowed"
    return replace(passed(reason, value=largest, limit=limit), parts=worst)


def _batches(context: CheckContext) -> list[Batch]:
    view = context.fp32.view
    if context.policy.inputs:
        defaults = context.fp32.defaults
        return [Batch(path.name, read_feeds(path, view, defaults)) for path in context.policy.inputs]
    products = [n.name for n in view.nodes if work_of(view.signature(n.name)).kind is WorkKind.GEMM]
    # Only a trial tells whether low products bear a doubtful input.
    return [batch for batch in draw_batches(view, products, context.ranges) if not batch.doubtful]
