"""The assignment nothing can beat under the same lists, safety rules and costs: a minimum cut.

Yes is low, no is FP32. A node pays what low precision would gain on it while it is FP32, and every
Cast is paid while it is there (:class:`campo_onnx.optimize.casts.PossibleCast`). Whether a low
product is padded is another choice of the same cut. What stays FP32
for ever (deny, taint, missing kernels, graph inputs and outputs) is not a choice.
"""

import math
from collections.abc import Collection
from functools import cache

from campo_onnx.optimize.casts import CastKind
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.minimum_cut import Cut, Network
from campo_onnx.optimize.padding.terms import padded_choice, pay_for_pads
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Padding, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts

_MAY_BE_LOW = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)


def optimal(problem: Problem) -> Assignment:
    """Find the assignment of least predicted time, with a certificate that it is the least.

    Returns
    -------
    Assignment
        Of the fewest low nodes among those equally fast. ``lower_bound_us`` is what no assignment
        can go below: the value of the cut.
    """
    verdicts = listed_verdicts(problem)
    tainted = taint(problem.view, problem.classification)
    verdicts |= dict.fromkeys(tainted, Verdict(decided_by=Reason.DOWNSTREAM_OF_DENY))
    free = _free(problem, tainted)
    cut, bound_us = _best(problem, free)
    padding = problem.padding
    may_be_padded = {} if padding is None else padding.gains_us
    padded = _padded(cut, padding) if padding else frozenset()

    @cache  # nodes alike share one
    def verdict(gain_us: float, is_low: bool) -> Verdict:
        if is_low:
            low = problem.low.value.upper()
            return Verdict(decided_by=Reason.CUT_LOW, facts={"gain_us": gain_us, "low": low})
        return Verdict(decided_by=Reason.CUT_FP32, facts={"gain_us": gain_us})

    for name in free:
        gain_us = problem.costs.nodes[name].gain_us + (may_be_padded[name] if name in padded else 0.0)
        verdicts[name] = verdict(gain_us, name in cut.yes)
    return Assignment(
        low=cut.yes & frozenset(free),
        verdicts={k: v for k, v in verdicts.items() if problem.is_free(k)},
        padded=None if padding is None else padded,
        # The threshold steers the choice; no time passes in it.
        lower_bound_us=bound_us - (0.0 if padding is None else padding.threshold_us * len(padded)),
    )


def lower_bound_us(problem: Problem, low: Collection[str], padded: int) -> float:
    """Find what no assignment can go below that lowers what the lists allow, or any of some nodes.

    Parameters
    ----------
    problem
        The problem, with what may be padded.
    low
        Nodes that are low besides: not every strategy goes by classes.
    padded
        How many products the plan that the bound is meant for pads.
    """
    allowed = set(_free(problem, taint(problem.view, problem.classification))).union(low)
    free = [node.name for node in problem.view.nodes if node.name in allowed]
    cut, bound_us = _best(problem, free)
    # The threshold steers the choice; no time passes in it.
    padding = problem.padding
    return bound_us - (padding.threshold_us * max(len(_padded(cut, padding)), padded) if padding else 0.0)


def _padded(cut: Cut, padding: Padding) -> frozenset[str]:
    return frozenset(name for name in padding.gains_us if padded_choice(name) in cut.yes)


def _free(problem: Problem, tainted: Collection[str]) -> list[str]:
    return [
        node.name
        for node in problem.view.nodes
        if node.name not in tainted and has_class(problem, node.name, *_MAY_BE_LOW)
    ]


def _best(problem: Problem, free: list[str]) -> tuple[Cut, float]:
    """Find the answer that costs least, and what no answer can cost less than.

    Where the session may cast all weights at once, both ways are tried, and each answer is charged with what
    the session then does.
    """
    cuts = {False: _minimum_cut(problem, free, at_once=False)}
    if problem.flat is None:
        return cuts[False], cuts[False].cost_us
    cuts[True] = _minimum_cut(problem, free, at_once=True)
    free_nodes = frozenset(free)

    def charged_us(at_once: bool) -> float:
        low = cuts[at_once].yes & free_nodes
        return cuts[at_once].cost_us + problem.predicted_us(low) - problem.predicted_us(low, at_once=at_once)

    best = min(cuts, key=charged_us)
    return cuts[best], min(cut.cost_us for cut in cuts.values())


def _minimum_cut(problem: Problem, free: list[str], *, at_once: bool) -> Cut:
    padding = problem.padding
    network = Network([*free, *map(padded_choice, padding.gains_us)] if padding else free)
    network.pay(math.fsum(cost.fp32_us for cost in problem.costs.nodes.values()))
    for name in free:
        network.gain(problem.costs.nodes[name].gain_us, name)
    readers: dict[str, None] = {}
    for site in problem.sites.values():
        if at_once and problem.has_flat_cast(site):
            readers.update(dict.fromkeys(site.consumers))
            continue
        for cast in site.casts:
            if cast.kind is CastKind.EXISTING:  # in the step as given already
                network.pay(-cast.cast_us)
            network.pay(cast.cast_us, yes=cast.if_low, no=cast.if_fp32)
    if readers:
        network.pay(problem.flat_cast_us, yes=tuple(readers))
    if padding:
        pay_for_pads(network, padding)
        for name in padding.gains_us:
            network.require(padded_choice(name), name)
    return network.cut()
