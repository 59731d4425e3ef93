"""Tensors as functions of others, element by element: two functions of the same values may be close."""

from collections.abc import Sequence

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import current
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.values.sum_ops import MOVES

_KEEPING_BITS = MOVES | op_keys("Abs Clip LeakyRelu Max Min Neg Relu Sign Where")
_LINEAR = _KEEPING_BITS | op_keys("Add Mul Sub Sum")
_PARTS = op_keys("Gather Slice Split")
_MOST_SOURCES = 6


class Functions:
    """The tensors that each is computed from element by element, and what has been rounded since.

    Examples
    --------
    Of ``s + t`` and ``2 * sqrt(s * t)`` both are functions of s and t, so that their difference may be far
    smaller than either; so may ``exp(x) - 1`` be, and the determinant ``x[0] * y[1] - x[1] * y[0]``.
    """

    def __init__(self, view: GraphView) -> None:
        self._view, self._specs = view, current()
        self._sources: dict[str, frozenset[str]] = {}
        self._rounded: set[str] = set()
        self._bent: set[str] = set()
        self._parts: dict[str, tuple[str, str]] = {}  # the tensor that something is a part of, and which part
        self._crossed: dict[str, frozenset[str]] = {}  # of two parts in different places, what they are of

    def are_placed(self, node: OpNode) -> bool:
        """Whether each element of a result is computed from those in the same place."""
        return node.op in MOVES or self._specs.spec(node.op).family is Family.ELEMENTWISE

    def meet(self, node: OpNode) -> bool:
        """Follow a node; say whether it takes a function of some values from another of the same."""
        view = self._view
        varying = [t for t in node.inputs if view.is_float32(t) and not view.is_constant(t)]
        outputs = [t for t in node.outputs if view.is_float32(t)]
        if not varying or not outputs:
            return False
        self._follow_parts(node, varying, outputs)
        if not self.are_placed(node):
            return False
        sources = [self._sources.get(t, frozenset({t})) for t in varying]
        every = frozenset[str]().union(*sources)
        if len(every) <= _MOST_SOURCES:
            self._sources.update((t, every) for t in outputs)
        is_rounded = any(t in self._rounded for t in varying)
        is_bent = any(t in self._bent for t in varying)
        if is_rounded or node.op not in _KEEPING_BITS:
            self._rounded.update(outputs)
        if is_bent or node.op not in _LINEAR:
            self._bent.update(outputs)
        if node.op.label != "Sub":
            return False
        if len(varying) == 1:
            return is_bent and varying[0] == node.inputs[0] and view.scalar(node.inputs[1]) != 0.0
        a, b = varying
        is_determinant = a in self._crossed and self._crossed[a] == self._crossed.get(b)
        are_alike = sources[0] <= sources[1] or sources[1] <= sources[0]
        return a != b and (is_determinant or (is_rounded and are_alike))

    def _follow_parts(self, node: OpNode, varying: Sequence[str], outputs: Sequence[str]) -> None:
        view, parts = self._view, self._parts
        if node.op in _PARTS:
            whole = view.origin(varying[0], MOVES)
            place = " ".join(str(view.values[t].tolist()) for t in node.inputs[1:] if t in view.values)
            parts.update((t, (whole, f"{place} {i}")) for i, t in enumerate(outputs))
        elif node.op in MOVES and varying[0] in parts:
            parts[outputs[0]] = parts[varying[0]]
        elif node.op.label == "Mul" and len(varying) == 2 and all(t in parts for t in varying):
            (a, here), (b, there) = (parts[t] for t in varying)
            if here != there:
                self._crossed[outputs[0]] = frozenset({a, b})
