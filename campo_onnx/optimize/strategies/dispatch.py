"""NVIDIA's and PyTorch's AMP: node by node in the order of execution, as frameworks run eagerly."""

from collections.abc import Callable

from campo_onnx.ir.view import OpNode
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts

Follows = Callable[[OpNode, "Dispatched"], bool]
"""Whether a node on neither list is low, given what ran before it."""


class Dispatched:
    """The operators that have run so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.low: set[str] = set()

    def data(self, node: OpNode) -> tuple[str, ...]:
        """Inputs whose precision counts: those that can be low, without constants."""
        tensors = (node.inputs[i] for i in sorted(self.problem.ports[node.name].low_inputs))
        return tuple(t for t in tensors if not self.problem.view.is_constant(t))

    def is_low(self, tensor: str) -> bool:
        """Whether a tensor is made low."""
        site = self.problem.sites.get(tensor)
        return site is not None and site.producer in self.low


def dispatch(problem: Problem, follows: Follows, *, rule: Reason) -> Assignment:
    """Run through the graph once: allow nodes low, deny nodes FP32, the rest by `follows`."""
    verdicts = listed_verdicts(problem)
    so_far = Dispatched(problem)
    for node in problem.view.nodes:
        name = node.name
        if has_class(problem, name, OpClass.ALLOW):
            is_low, reason = True, Reason.ALLOW_LIST
        elif has_class(problem, name, OpClass.INFER, OpClass.CLEAR):
            is_low, reason = follows(node, so_far), rule
        else:
            continue
        verdicts[name] = reason.of()
        if is_low:
            so_far.low.add(name)
    return Assignment(low=frozenset(so_far.low), verdicts=verdicts)


def nvidia_amp(problem: Problem) -> Assignment:
    """Decide by NVIDIA's rules (Mixed precision training, GTC 2019, "Operation classification").

    Whitelist: always low, cast if necessary. Blacklist: always FP32, cast if necessary. Everything
    else runs in the existing type of its input: of its first one, the others are cast to it.
    """
    return dispatch(problem, _first_input_low, rule=Reason.FIRST_INPUT)


def _first_input_low(node: OpNode, so_far: Dispatched) -> bool:
    data = so_far.data(node)
    return bool(data) and so_far.is_low(data[0])


def torch_amp(problem: Problem) -> Assignment:
    """Decide as ``torch.autocast`` does, one call after the other.

    A node on neither list runs in the widest type among its inputs: low only when all of them are
    (type promotion). Constants stand for Python numbers and zero-dimensional tensors, which do not
    take part in promotion; graph inputs are FP32.
    """
    return dispatch(problem, _all_inputs_low, rule=Reason.WIDEST_INPUT)


def _all_inputs_low(node: OpNode, so_far: Dispatched) -> bool:
    data = so_far.data(node)
    return bool(data) and all(map(so_far.is_low, data))
