"""Exp inside the gradient of GELU: its argument is a small constant minus a square."""

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_SCALES = having(Trait.SCALES)


def gelu(view: GraphView, update: frozenset[str]) -> Findings:
    """Find Exp(-c * x * x), which lies in (0, 1], and Exp(a - c * x * x) for an `a` of at most 1.

    Pow(a, c * x * x) for an `a` in (0, 1] is the same.

    Where the square overflows to infinity the result is the zero it would have been anyway.
    """
    classes = {}
    for node in view.nodes:
        if node.op.label == "Exp" and _is_bounded(node.inputs[0], view):
            classes[node.name] = (OpClass.INFER, Finding.GELU_EXP)
        elif node.op.label == "Pow" and _decays(node, view):
            classes[node.name] = (OpClass.INFER, Finding.GELU_POWER)
    return Findings(classes=classes)


def _is_bounded(exponent: str, view: GraphView) -> bool:
    shift = view.producer.get(exponent)
    if shift is not None and shift.op.label == "Sub" and _is_at_most_one(shift.inputs[0], view):
        return _is_minus_square(shift.inputs[1], view, negative=True)
    return _is_minus_square(exponent, view, negative=False)


def _decays(power: OpNode, view: GraphView) -> bool:
    base = view.values.get(power.inputs[0])
    if base is None or not bool(np.all((base > 0) & (base <= 1))):
        return False
    return _is_minus_square(power.inputs[1], view, negative=True)


def _is_minus_square(tensor: str, view: GraphView, *, negative: bool) -> bool:
    """Whether a tensor is a square times constants, with a minus sign over all; one may stand before it."""
    while (node := view.producer.get(tensor)) is not None:
        if view.power(node) == 2:
            return negative
        if node.op.label == "Neg":
            tensor, negative = node.inputs[0], not negative
            continue
        scaled = _scaled(node, view)
        if scaled is None:
            return False
        tensor, negative = scaled[0], negative != scaled[1]
    return False


def _is_at_most_one(tensor: str, view: GraphView) -> bool:
    constant = view.values.get(tensor)
    return constant is not None and bool(np.all(constant <= 1))


def _scaled(node: OpNode, view: GraphView) -> tuple[str, bool] | None:
    """Return what a node multiplies or divides by a constant, and whether that is negative."""
    if node.op not in _SCALES:
        return None
    pairs = [node.inputs] if node.op.op_type == "Div" else [node.inputs, node.inputs[::-1]]
    for tensor, scale in pairs:
        signs = np.sign(view.values.get(scale, 0))
        if np.all(signs == 1) or np.all(signs == -1):
            return tensor, bool(np.all(signs == -1))
    return None
