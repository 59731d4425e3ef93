"""NVIDIA's and PyTorch's AMP: node by node in the order of execution, as frameworks run eagerly."""

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts


def _dispatch(problem: Problem, counted: slice, rule: Reason) -> Assignment:
    """Run through the graph once: allow nodes low, deny nodes FP32, the rest low if `counted` inputs all are.

    Inputs that can be low count, without constants.
    """
    view, verdicts, low = problem.view, listed_verdicts(problem), set[str]()
    made_low: set[str] = set()
    for node in view.nodes:
        ports = problem.ports[node.name]
        if has_class(problem, node.name, OpClass.ALLOW):
            is_low, reason = True, Reason.ALLOW_LIST
        elif has_class(problem, node.name, OpClass.INFER, OpClass.CLEAR):
            read = [node.inputs[i] for i in sorted(ports.low_inputs)]
            data = [tensor for tensor in read if not view.is_constant(tensor)][counted]
            is_low, reason = bool(data) and made_low.issuperset(data), rule
        else:
            continue
        verdicts[node.name] = reason.of()
        if is_low:
            low.add(node.name)
            made_low.update(node.outputs[i] for i in ports.low_outputs)
    return Assignment(low=frozenset(low), verdicts=verdicts)


def nvidia_amp(problem: Problem) -> Assignment:
    """Decide by NVIDIA's rules (Mixed precision training, GTC 2019, "Operation classification").

    Whitelist: always low, cast if necessary. Blacklist: always FP32, cast if necessary. Everything
    else runs in the existing type of its input: of its first one, the others are cast to it.
    """
    return _dispatch(problem, slice(1), Reason.FIRST_INPUT)


def torch_amp(problem: Problem) -> Assignment:
    """Decide as ``torch.autocast`` does, one call after the other.

    A node on neither list runs in the widest type among its inputs: low only when all of them are
    (type promotion). Constants stand for Python numbers and zero-dimensional tensors, which do not
    take part in promotion; graph inputs are FP32.
    """
    return _dispatch(problem, slice(None), Reason.WIDEST_INPUT)
