"""Signs of tensors: a difference may be written as ``a - b``, ``a + (-b)`` or ``-b + a``."""

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES, PARTS, SCALES, SUMS_OF_FEW

_ONE = MOVES | PARTS | op_keys("Neg")


class Signs:
    """The signs of tensors: proved ones, and else whether they are the negative of something."""

    def __init__(self, values: GraphValues) -> None:
        self._values = values
        self._negative: set[str] = set()

    def follow(self, node: OpNode) -> None:
        """Follow a node that moves, scales or turns the sign of something."""
        if node.op not in _ONE | SCALES:
            return
        factors = node.inputs[:1] if node.op in _ONE else node.inputs
        is_negative = sum(map(self.is_negative, factors)) % 2 == 1
        if is_negative != (node.op.label == "Neg"):
            self._negative.update(filter(None, node.outputs))

    def is_negative(self, tensor: str) -> bool:
        """Whether a tensor counts as negative."""
        r = self._values.range(tensor)
        return r.highest <= 0.0 or (r.lowest < 0.0 and tensor in self._negative)

    def is_difference(self, node: OpNode) -> bool:
        """Whether a sum of two takes one of them off the other."""
        if node.op not in SUMS_OF_FEW or len(node.inputs) != 2:
            return False
        is_negative = sum(map(self.is_negative, node.inputs)) % 2 == 1
        return is_negative != (node.op.label == "Sub")
