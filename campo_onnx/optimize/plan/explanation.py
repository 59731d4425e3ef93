"""Why a node has its precision, in sentences: gain, shared casts, and what would change it."""

from collections.abc import Iterator, Sequence

from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.wording import duration

_NAMED = 3  # neighbours that a sentence names


def explained(plan: Plan, node: str) -> tuple[str, ...]:
    """Say in sentences why a node has its precision, and what would change it.

    Returns
    -------
    tuple of str
        One sentence or two each; empty where the reason says it all.
    """
    decision = plan.decision[node]
    told: tuple[str, ...] = ()
    if decision.is_lowered:
        told = (_gain(decision, plan), *_casts(decision, plan))
    elif decision.other_cast_us is not None:
        told = (_foregone(decision, plan),)
    return (*told, *_change(decision, plan))


def _gain(decision: Decision, plan: Plan) -> str:
    low = plan.low.value.upper()
    if round(decision.gain_us, 1) == 0:
        return f"{low} gains nothing here, and saves the casts that FP32 would need."
    if decision.gain_us < 0:
        return f"{low} costs {duration(-decision.gain_us)} here, and saves the casts that FP32 would need."
    return f"{low} gains {duration(decision.gain_us)} here ({duration(decision.fp32_us)} in FP32)."


def _casts(decision: Decision, plan: Plan) -> Iterator[str]:
    own = plan.casts_at.get(decision.node, ())
    if not own:
        yield "It needs no cast: all that it reads and all who read it are in low precision as well."
        return
    shared = [cast for cast in own if cast.producer != decision.node and len(cast.consumers) > 1]
    others = dict.fromkeys(use.node for cast in shared for use in cast.consumers if use.node != decision.node)
    total = f"Its {len(own)} casts take" if len(own) > 1 else "Its cast takes"
    price = f"{total} {duration(sum(cast.cast_us for cast in own))}"
    if not shared:
        yield f"{price}; no other node shares {'them' if len(own) > 1 else 'it'}."
        return
    which = f"{len(shared)} of them {'are' if len(shared) > 1 else 'is'}" if len(own) > 1 else "it is"
    yield f"{price}; {which} shared with {_listed([*others])}."


def _foregone(decision: Decision, plan: Plan) -> str:
    low = plan.low.value.upper()
    casts_us = decision.other_cast_us or 0.0
    gains = (
        f"{low} would gain {duration(decision.gain_us)} here"
        if round(decision.gain_us, 1) > 0
        else f"{low} would take {duration(-decision.gain_us)} longer here"
        if round(decision.gain_us, 1) < 0
        else f"{low} takes as long as FP32 here"
    )
    if not casts_us:
        return f"{gains}; casts would stay as they are."
    return f"{gains}; alone in {low}, {'casts' if casts_us > 0 else 'fewer casts'} would " + (
        f"cost {duration(casts_us)} more." if casts_us > 0 else f"save {duration(-casts_us)}."
    )


def _change(decision: Decision, plan: Plan) -> Iterator[str]:
    """Say what would change the precision."""
    if decision.other_cast_us is not None and decision.decided_by in (Reason.CUT_LOW, Reason.CUT_FP32):
        casts_us, low = decision.other_cast_us, plan.low.value.upper()
        if decision.is_lowered:
            lost_us = decision.gain_us + casts_us
            because = f", {duration(casts_us)} of it for casts" if casts_us > 0 else ""
            if round(lost_us, 1) == 0:
                yield "With this node alone in FP32 the step would take just as long."
            elif lost_us > 0:
                yield f"With this node alone in FP32 the step would be {duration(lost_us)} longer{because}."
        else:
            lost_us = casts_us - decision.gain_us
            if lost_us <= 0:
                yield f"With this node alone in {low} the step would take just as long, so it stays FP32."
            else:
                yield (
                    f"It would be {low} if that gained {duration(lost_us)} more here, or if its neighbours "
                    f"were {low} and shared the casts."
                )
    if (remedy := decision.decided_by.remedy) is not None:
        yield remedy.format_map(decision.facts)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more nodes"
