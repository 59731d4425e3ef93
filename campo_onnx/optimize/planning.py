"""From a strategy's answer to a plan: every decision with its price, and the casts it takes."""

from campo_onnx.ir.view import FLOAT
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.plan import Decision, Plan, PlannedCast
from campo_onnx.optimize.problem import Assignment, Problem, Verdict


def make_plan(problem: Problem, assignment: Assignment, *, strategy: str, lists: str) -> Plan:
    """Turn a strategy's answer into a plan.

    Parameters
    ----------
    problem
        The question.
    assignment
        The answer.
    strategy, lists
        Names to record.
    """
    low = assignment.low
    casts = tuple(_casts(problem, low))
    cast_us_by_tensor = {cast.tensor: cast.cast_us for cast in casts}
    decisions = []
    for node in problem.view.nodes:
        verdict = problem.fixed.get(node.name) or assignment.verdicts[node.name]
        decisions.append(
            Decision(
                node=node.name,
                op_type=node.op.label,
                op_class=problem.op_class(node.name).value,
                precision=_precision(problem, node.name, low, verdict),
                decided_by=verdict.decided_by,
                reason=verdict.reason,
                fp32_us=problem.costs.nodes[node.name].fp32_us,
                gain_us=problem.costs.nodes[node.name].gain_us,
                cast_us=sum(cast_us_by_tensor.get(e.tensor, 0.0) for e in problem.edges_of(node.name)),
            )
        )
    return Plan(
        strategy=strategy,
        lists=lists,
        device=problem.costs.device,
        source=problem.costs.source,
        low=problem.low.value,
        fp32_us=problem.predicted_us(frozenset()),
        predicted_us=problem.predicted_us(low),
        casts=casts,
        pads=(),
        decisions=tuple(decisions),
        digest=problem.view.digest,
        lower_bound_us=assignment.lower_bound_us,
    )


def _casts(problem: Problem, low: frozenset[str]) -> list[PlannedCast]:
    casts = []
    for edge in problem.edges.values():
        if edge.is_cast_down(low):
            consumers = tuple(reader for reader in edge.readers if reader in low)
            src, dst = Precision.FP32, problem.low
        elif edge.is_cast_up(low):
            consumers = tuple(
                dict.fromkeys(
                    use.node
                    for use in problem.view.consumers.get(edge.tensor, ())
                    if use.position not in problem.ports[use.node].any_inputs
                    and edge.twin not in problem.view.node[use.node].outputs  # a Cast that is dropped
                    and (use.node not in low or use.position not in problem.ports[use.node].low_inputs)
                )
            )
            src, dst = problem.low, Precision.FP32
        else:
            continue
        maker = problem.view.producer.get(edge.tensor)
        casts.append(
            PlannedCast(
                tensor=edge.tensor,
                src=src.value,
                dst=dst.value,
                producer=maker.name if maker is not None else "",
                consumers=consumers,
                cast_us=edge.cast_us,
            )
        )
    return casts


def _precision(problem: Problem, node: str, low: frozenset[str], verdict: Verdict) -> str:
    if node in low:
        return problem.low.value
    op_node = problem.view.node[node]
    tensors = [t for t in (*op_node.inputs, *op_node.outputs) if t]
    dtypes = {problem.view.tensors[t].dtype for t in tensors}
    if FLOAT in dtypes:
        return Precision.FP32.value
    found = [p.value for p in low_precisions() if p.onnx_dtype in dtypes]
    return found[0] if found else "-"
