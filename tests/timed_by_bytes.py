"""Times that no machine disturbs: a node runs, and what it takes is said by its bytes.

A test that measures on whatever machine it is on can ask for no figure, and not even that a fit succeeds:
beside other programs the time of a short node may come out as zero.
"""

from dataclasses import replace

from onnx import TensorProto

from campo_onnx.measure import node_timer
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.timing import Effort, Timing

BRIEF = Effort(warmup=1, repeats=3, least=1, budget_s=0.01)
_LOW = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
_time_node = node_timer.time_node


def time_node(signature: Signature, timer: NodeTimer) -> Timing:
    """Run a node as :func:`campo_onnx.measure.node_timer.time_node` does, and make up what it takes.

    A microsecond and a nanosecond a byte; in low precision three times that on a CPU, which emulates it, and
    a tenth on a GPU.
    """
    run = _time_node(signature, replace(timer, effort=BRIEF))
    is_low = any(info.dtype in _LOW for info in signature.operands)
    factor = 1.0 if not is_low else 3.0 if timer.machine.provider == "cpu" else 0.1
    return replace(run, median_us=factor * (1 + signature.nbytes / 1e3), spread_us=0.0)


def switch_on() -> None:
    """Let every node of this process be timed so, for good: for a program that a test starts."""
    node_timer.time_node = time_node
