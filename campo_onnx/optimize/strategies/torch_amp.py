"""PyTorch AMP: three lists and a decision at every call; the rest takes the widest of its inputs."""

from campo_onnx.ir.view import OpNode
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.dispatch import Dispatched, dispatch


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
