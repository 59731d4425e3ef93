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
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW
from campo_onnx.optimize.minimum_cut import Cut, Network
from campo_onnx.optimize.padding.terms import padded_choice, pay_for_pads
from campo_onnx.optimize.plan.reason import Fact, Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Padding, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts


def optimal(problem: Problem) -> Assignment:
    """Find the assignment of least predicted time, with a certificate that it is the least.

    It has the fewest low nodes among those equally fast. ``lower_bound_us`` is what no assignment
    can go below: the value of the cut.
    """
    free = free_nodes(problem)
    cut, bound_us = cheapest(problem, free)
    padding = problem.padding
    padded = padded_nodes(cut, padding)
    # The threshold steers the choice; no time passes in it.
    return answer(
        problem,
        cut.yes.intersection(free),
        padded,
        lower_bound_us=bound_us - (0.0 if padding is None else padding.threshold_us * len(padded)),
    )


def answer(
    problem: Problem,
    low: Collection[str],
    padded: frozenset[str],
    *,
    lower_bound_us: float,
    reasons: tuple[Reason, Reason] = (Reason.CUT_LOW, Reason.CUT_FP32),
    error: float | None = None,
) -> Assignment:
    """State an assignment with a verdict for every node.

    `reasons`: the rule that decided about low nodes, and about those in FP32.
    `error`: what the sentences of these rules speak of beside gains, if they do.
    """
    verdicts = listed_verdicts(problem)
    verdicts |= dict.fromkeys(problem.tainted, Reason.DOWNSTREAM_OF_DENY.of())
    padding = problem.padding
    more: dict[str, Fact] = {} if error is None else {"error": error}

    @cache  # nodes alike share one
    def verdict(gain_us: float, is_low: bool) -> Verdict:
        if is_low:
            return reasons[0].of(gain_us=gain_us, low=problem.low.value.upper(), **more)
        return reasons[1].of(gain_us=gain_us, **more)

    for name in free_nodes(problem):
        gain_us = problem.costs.nodes[name].gain_us
        if padding is not None and name in padded:
            gain_us += padding.gains_us[name]
        verdicts[name] = verdict(gain_us, name in low)
    return Assignment(
        low=frozenset(low),
        verdicts={k: v for k, v in verdicts.items() if problem.is_free(k)},
        padded=None if padding is None else padded,
        lower_bound_us=lower_bound_us,
    )


def lower_bound_us(problem: Problem, low: Collection[str], padded: int) -> float:
    """Find what no assignment can go below that lowers what the lists allow, or any of some nodes.

    `low`: nodes that are low besides: not every strategy goes by classes.
    `padded`: how many products the plan that the bound is meant for pads.
    """
    allowed = set(free_nodes(problem)).union(low)
    free = [node.name for node in problem.view.nodes if node.name in allowed]
    cut, bound_us = cheapest(problem, free)
    # The threshold steers the choice; no time passes in it.
    padding = problem.padding
    return bound_us - (
        padding.threshold_us * max(len(padded_nodes(cut, padding)), padded) if padding else 0.0
    )


def padded_nodes(cut: Cut, padding: Padding | None) -> frozenset[str]:
    """Products that an answer pads."""
    if padding is None:
        return frozenset()
    return frozenset(name for name in padding.gains_us if padded_choice(name) in cut.yes)


def free_nodes(problem: Problem) -> list[str]:
    """Nodes that may be decided about: lists, safety rules and taint permitting."""
    return [
        node.name
        for node in problem.view.nodes
        if node.name not in problem.tainted and has_class(problem, node.name, *MAY_BE_LOW)
    ]


def cheapest(problem: Problem, free: list[str]) -> tuple[Cut, float]:
    """Find the answer that costs least, and what no answer can cost less than.

    Where the session may cast all weights at once, both ways are tried, and each answer is charged with what
    the session then does.
    """
    cuts = {at_once: network.cut() for at_once, network in networks(problem, free).items()}
    choices = frozenset(free)

    def charged_us(at_once: bool) -> float:
        return cuts[at_once].cost_us + uncharged_us(problem, cuts[at_once].yes & choices, at_once=at_once)

    return cuts[min(cuts, key=charged_us)], min(cut.cost_us for cut in cuts.values())


def uncharged_us(problem: Problem, low: frozenset[str], *, at_once: bool) -> float:
    """Time by which the session takes longer than if it cast weights at once, or did not."""
    if problem.flat is None:
        return 0.0
    return problem.predicted_us(low) - problem.predicted_us(low, at_once=at_once)


def networks(problem: Problem, free: list[str]) -> dict[bool, Network]:
    """Charge for all choices, by whether the session casts all weights at once: True only where it may."""
    ways = (False,) if problem.flat is None else (False, True)
    return {at_once: _network(problem, free, at_once=at_once) for at_once in ways}


def _network(problem: Problem, free: list[str], *, at_once: bool) -> Network:
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
    return network
