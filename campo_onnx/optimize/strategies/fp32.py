"""Change nothing."""

from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Problem


def fp32(problem: Problem) -> Assignment:
    """Leave every node in FP32: the baseline."""
    return all_fp32(problem, Verdict(decided_by=Reason.STRATEGY_FP32))


def all_fp32(problem: Problem, verdict: Verdict) -> Assignment:
    """Leave every node in FP32, for a given reason."""
    return Assignment(
        low=frozenset(),
        verdicts={node.name: verdict for node in problem.view.nodes if problem.is_free(node.name)},
    )
