"""A mixed graph as a plan: what its report shows of it."""

from dataclasses import dataclass

from campo_onnx.checking.context import CheckContext, context_of
from campo_onnx.checking.policy import Pair
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.traffic import Traffic, traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPlan:
    """A mixed graph as a plan of the FP32 graph.

    Precisions are those that the nodes have in the file; reasons are those of the baseline where it fits.
    """

    plan: Plan
    problem: Problem
    before: Traffic
    after: Traffic


def as_plan(pair: Pair) -> AsPlan | None:
    """Read both graphs of a pair, and say of each node what the mixed one has made of it.

    None where one cannot be read, or they do not belong together: the verdicts say why.
    """
    try:
        fp32 = import_model(pair.against, pair.policy.dims)
        mixed = import_model(pair.mixed, pair.policy.dims)
        context = context_of(fp32, mixed, pair.policy, title=str(pair.mixed))
    except CampoError:
        return None
    stamp = mixed.stamp
    answer = Assignment(low=context.changes.low_nodes, verdicts=_verdicts(context))
    return AsPlan(
        plan=make_plan(
            context.problem,
            answer,
            strategy="as written" if stamp is None else stamp.strategy,
            lists=context.policy.lists.name,
        ),
        problem=context.problem,
        before=traffic(fp32.view),
        after=traffic(mixed.view),
    )


def _verdicts(context: CheckContext) -> dict[str, Verdict]:
    said = context.plan.decision if context.plan is not None and context.plan_fits else {}
    verdicts = {}
    for node in context.fp32.view.nodes:
        is_low = node.name in context.changes.low_nodes
        decision = said.get(node.name)
        if decision is not None and decision.is_lowered == is_low:
            verdicts[node.name] = decision.verdict
        else:
            verdicts[node.name] = Reason.AS_WRITTEN.of()
    return verdicts
