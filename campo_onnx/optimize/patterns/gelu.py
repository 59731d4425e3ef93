"""Exp inside the gradient of GELU: its argument is a square times a negative constant."""

import numpy as np

from campo_onnx.ir.view import GraphView, OpKey
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.patterns.findings import Findings


def gelu(view: GraphView, update: frozenset[str]) -> Findings:
    """Find Exp(-c * x * x), which lies in (0, 1].

    Where the square overflows to infinity the result is the zero it would have been anyway.
    """
    classes = {}
    for node in view.nodes:
        if node.op == OpKey("", "Exp") and _is_minus_square(node.inputs[0], view):
            classes[node.name] = (OpClass.INFER, "Exp(-x * x) inside GELU's gradient, bounded by 1")
    return Findings(classes=classes)


def _is_minus_square(tensor: str, view: GraphView) -> bool:
    node = view.producer.get(tensor)
    if node is None:
        return False
    if node.op == OpKey("", "Neg"):
        return _is_square(node.inputs[0], view, positive_scale=True)
    if node.op not in (OpKey("", "Mul"), OpKey("", "Div")):
        return False
    for square, scale in (node.inputs, node.inputs[::-1] if node.op.op_type == "Mul" else ("", "")):
        if scale in view.values and np.all(view.values[scale] < 0) and _is_square(square, view):
            return True
    return False


def _is_square(tensor: str, view: GraphView, *, positive_scale: bool = False) -> bool:
    node = view.producer.get(tensor)
    if node is None:
        return False
    if node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        return exponent is not None and exponent.size == 1 and np.ravel(exponent)[0] == 2
    if node.op == OpKey("", "Mul") and node.inputs[0] == node.inputs[1]:
        return True
    if positive_scale and node.op == OpKey("", "Mul"):
        pairs = (node.inputs, node.inputs[::-1])
        return any(
            scale in view.values and np.all(view.values[scale] > 0) and _is_square(square, view)
            for square, scale in pairs
        )
    return False
