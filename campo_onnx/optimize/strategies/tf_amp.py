"""TF_AMP: TensorFlow's automatic mixed precision, the paper's baseline. Lists and paint, no costs."""

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import between, flood, taint
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts


def tf_amp(problem: Problem) -> Assignment:
    """Paint the graph as TensorFlow's grappler pass does.

    1. Every allow node is low, with no test of benefit.
    2. Deny flows forward through infer and clear nodes.
    3. What lies between low nodes becomes low.
    4. Low floods up and down through clear nodes.
    5. A conversion from a mask whose consumers are all low makes the low type at once.
    """
    view = problem.view
    verdicts = listed_verdicts(problem)
    low = frozenset(n.name for n in view.nodes if has_class(problem, n.name, OpClass.ALLOW))
    _note(verdicts, low, Reason.ALLOW_LIST)
    tainted = taint(view, problem.classification)
    _note(verdicts, tainted, Reason.DOWNSTREAM_OF_DENY)

    def may_become_low(name: str, *classes: OpClass) -> bool:
        return name not in tainted and has_class(problem, name, *classes)

    added = between(view, low, lambda name: may_become_low(name, OpClass.INFER, OpClass.CLEAR))
    _note(verdicts, added, Reason.BETWEEN)
    low |= added
    added = flood(view, low, lambda name: may_become_low(name, OpClass.CLEAR))
    _note(verdicts, added, Reason.CLEAR_NEIGHBOUR)
    low |= added
    added = _retargeted_casts(problem, low)
    _note(verdicts, added, Reason.CONSUMERS_LOW)
    low |= added
    rest = frozenset(n.name for n in view.nodes if problem.is_free(n.name)) - verdicts.keys()
    _note(verdicts, rest, Reason.NOT_BETWEEN)
    return Assignment(low=low, verdicts={k: v for k, v in verdicts.items() if problem.is_free(k)})


def _retargeted_casts(problem: Problem, low: frozenset[str]) -> frozenset[str]:
    casts = set()
    for node in problem.view.nodes:
        if node.op.op_type == "Cast" and node.name not in low and problem.is_free(node.name):
            site = problem.sites.get(node.outputs[0])
            if (
                site is not None
                and site.consumers
                and not site.needs_fp32
                and all(c in low for c in site.consumers)
            ):
                casts.add(node.name)
    return frozenset(casts)


def _note(verdicts: dict[str, Verdict], names: frozenset[str], reason: Reason) -> None:
    for name in names:
        verdicts.setdefault(name, reason.of())
