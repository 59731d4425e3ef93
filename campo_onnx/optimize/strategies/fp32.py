"""Change nothing."""

from campo_onnx.optimize.problem import Assignment, Problem, Verdict


def fp32(problem: Problem) -> Assignment:
    """Leave every node in FP32: the baseline."""
    return all_fp32(problem, Verdict(decided_by="fp32", reason="the strategy fp32 changes nothing"))


def all_fp32(problem: Problem, verdict: Verdict) -> Assignment:
    """Leave every node in FP32, for a given reason."""
    return Assignment(
        low=frozenset(),
        verdicts={node.name: verdict for node in problem.view.nodes if problem.is_free(node.name)},
    )
