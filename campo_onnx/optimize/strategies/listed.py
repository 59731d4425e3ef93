"""Verdicts that follow from the lists alone, whatever the strategy."""

from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.problem import Problem, Verdict

_MEANING = {
    OpClass.DENY: "on the deny list",
    OpClass.UNLISTED: "on none of the lists, on purpose",
    OpClass.UNKNOWN: "unknown to the lists",
}


def listed_verdicts(problem: Problem) -> dict[str, Verdict]:
    """Verdicts of free nodes that their class alone keeps FP32."""
    verdicts = {}
    for node in problem.view.nodes:
        op_class = problem.op_class(node.name)
        if problem.is_free(node.name) and op_class in _MEANING:
            reason = (
                problem.classification.classes[node.name].reason or f"{node.op.label} is {_MEANING[op_class]}"
            )
            verdicts[node.name] = Verdict(decided_by="lists", reason=reason)
    return verdicts


def has_class(problem: Problem, node: str, *classes: OpClass) -> bool:
    """Whether a node is free and of one of `classes`."""
    return problem.is_free(node) and problem.op_class(node) in classes
