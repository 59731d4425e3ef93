"""NVIDIA AMP: a whitelist, a blacklist, and everything else follows its input."""

from campo_onnx.ir.view import OpNode
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.dispatch import Dispatched, dispatch


def nvidia_amp(problem: Problem) -> Assignment:
    """Decide by NVIDIA's rules (Mixed precision training, GTC 2019, "Operation classification").

    Whitelist: always low, cast if necessary. Blacklist: always FP32, cast if necessary. Everything
    else runs in the existing type of its input: of its first one, the others are cast to it.
    """
    return dispatch(problem, _first_input_low, rule=Reason.FIRST_INPUT)


def _first_input_low(node: OpNode, so_far: Dispatched) -> bool:
    data = so_far.data(node)
    return bool(data) and so_far.is_low(data[0])
