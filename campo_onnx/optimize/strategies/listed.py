"""Verdicts that no costs change: those of the lists, and FP32 throughout."""

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Problem

_REASON = {OpClass.DENY: Reason.DENY_LIST, OpClass.UNLISTED: Reason.UNLISTED, OpClass.UNKNOWN: Reason.UNKNOWN}


def listed_verdicts(problem: Problem) -> dict[str, Verdict]:
    """Verdicts of free nodes that their class alone keeps FP32."""
    verdicts = {}
    for node in problem.view.nodes:
        op_class = problem.op_class(node.name)
        if problem.is_free(node.name) and op_class in _REASON:
            from_pattern = problem.classification.classes[node.name].finding
            verdicts[node.name] = (
                Reason.PATTERN.of(why=from_pattern.value)
                if from_pattern is not None
                else _REASON[op_class].of(op=node.op.label)
            )
    return verdicts


def has_class(problem: Problem, node: str, *classes: OpClass) -> bool:
    """Whether a node is free and of one of `classes`."""
    return problem.is_free(node) and problem.op_class(node) in classes


def fp32(problem: Problem) -> Assignment:
    """Leave every node in FP32: the baseline."""
    return all_fp32(problem, Reason.STRATEGY_FP32.of())


def all_fp32(problem: Problem, verdict: Verdict) -> Assignment:
    """Leave every node in FP32, for a given reason."""
    return Assignment(
        low=frozenset(),
        verdicts={node.name: verdict for node in problem.view.nodes if problem.is_free(node.name)},
    )
