"""Fine-grained selection: both precisions of every node, low unless FP32 wins by a margin."""

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts


def fine_grained(problem: Problem, *, margin_us: float = 1000.0) -> Assignment:
    """Compare each node's two times, casts left out of account.

    `problem`: the question. The method is meant for measured times; with others it decides by those.
    `margin_us`: FP32 is kept where it is faster by more than this; the paper's margin is 1 ms.
    """
    verdicts = listed_verdicts(problem)
    tainted = taint(problem.view, problem.classification)
    low: set[str] = set()
    for node in problem.view.nodes:
        name = node.name
        if not problem.is_free(name):
            continue
        if name in tainted:
            verdicts[name] = Reason.DOWNSTREAM_OF_DENY.of()
        elif has_class(problem, name, OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR):
            gain_us = problem.costs.nodes[name].gain_us
            wins = -gain_us > margin_us
            verdicts[name] = (
                Reason.MARGIN_FP32.of(lead_us=-gain_us)
                if wins
                else Reason.MARGIN_LOW.of(margin_us=margin_us, gain_us=gain_us, low=problem.low.name)
            )
            if not wins:
                low.add(name)
    return Assignment(low=frozenset(low), verdicts=verdicts)
