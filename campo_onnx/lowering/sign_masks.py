"""Masks of the gradient of Relu without a comparison.

A result of Relu is positive where it is not zero. ONNX Runtime's CUDA provider compares no BF16 numbers, but
casts them to truth values::

    g (float[2, 3] x, float[2, 3] dy, float zero) => (float[2, 3] dx)
    {
        y = Relu (x)
        is_positive = Greater (y, zero)
        dx = Where (is_positive, dy, zero)
    }

becomes, where `zero` is a constant::

    g (float[2, 3] x, float[2, 3] dy, float zero) => (float[2, 3] dx)
    {
        y = Relu (x)
        is_positive = Cast <to = 9> (y)
        dx = Where (is_positive, dy, zero)
    }

and LessOrEqual a Not of it. A NaN passes its gradient on, as it does in PyTorch.
"""

import numpy as np
import onnx
from onnx import TensorProto

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced
from campo_onnx.lowering.place import Place
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.precision import Precision

_COMPARISONS = op_keys("Greater LessOrEqual")
_KEEPS_SIGN = frozenset({"MaxPool", "Reshape", "Transpose", "Slice", "Flatten", "Squeeze", "Unsqueeze"})


def sign_masks(imported: Imported, place: Place) -> onnx.ModelProto:
    """Cast results of Relu to truth values where the target compares no BF16 numbers."""
    if place.computes("Greater", Precision.BF16):
        return imported.model
    view = imported.view
    return replaced(imported, [node for node in view.nodes if _is_sign(node, view)], _cast)


def _is_sign(node: OpNode, view: GraphView) -> bool:
    if node.op not in _COMPARISONS or not view.is_float32(node.inputs[0]):
        return False
    bound = view.values.get(node.inputs[1])
    is_zero = bound is not None and bound.size == 1 and not np.any(bound)
    keeps_shape = view.shape(node.inputs[0]) == view.shape(node.outputs[0])
    return is_zero and keeps_shape and _is_rectified(node.inputs[0], view)


def _is_rectified(tensor: str, view: GraphView) -> bool:
    node = view.producer.get(tensor)
    while node is not None and not node.op.domain and node.op.op_type in _KEEPS_SIGN:
        if tensor != node.outputs[0]:
            return False
        tensor = node.inputs[0]
        node = view.producer.get(tensor)
    return node is not None and node.op.label == "Relu"


def _cast(edit: Edit, node: OpNode) -> None:
    result = node.outputs[0]
    if node.op.op_type == "Greater":
        edit.op("Cast", node.inputs[0], output=result, to=TensorProto.BOOL)
        return
    edit.op("Not", edit.op("Cast", node.inputs[0], to=TensorProto.BOOL), output=result)
