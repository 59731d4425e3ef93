"""Tensors as sums of others: what a difference of two of them leaves of a term that both have."""

import math
from collections.abc import Container, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES_AND_PARTS, SCALES, SUMS, SUMS_OF_FEW, summed_input

_MOST_TERMS = 8
_FEW_ROUNDINGS = 4.0
_FAR = 16.0
_CANCELS = 0.1
"""The share of a term that is left where most of it cancels: its rounding grows ten times beside the rest."""


class LinearForms:
    """Every tensor as constants times other tensors, which are not sums themselves.

    Parts of a tensor, also joined anew, count as the tensor: neighbouring samples are close to each other.
    The same sum over the same axes of two tensors is a sum of their terms. What a constant adds has an empty
    name.

    ``(x + 0.5 * s) - (x - 0.5 * s)`` leaves nothing of ``x``, nor does ``x[2:] - 2 * x[1:-1] + x[:-2]``.
    """

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view = values, values.view
        self._forms: dict[str, Mapping[str, float]] = {}

    def add(self, node: OpNode) -> bool:
        """Follow a node; say whether most of some term cancels in it."""
        view = self._view
        if node.op in MOVES_AND_PARTS:
            form = self._of(node.inputs[0])
            self._forms.update((t, form) for t in node.outputs if t and form)
        elif node.op.label == "Concat" and all(self._of(t) == self._of(node.inputs[0]) for t in node.inputs):
            self._forms[node.outputs[0]] = self._of(node.inputs[0])  # parts of one tensor, in turn
        elif node.op in SUMS_OF_FEW:
            return self._add_sum(node)
        elif node.op.label == "Neg":
            self._scale(node, node.inputs[0], -1.0)
        elif node.op in SCALES:
            factors = [self._values.number(t) for t in node.inputs]
            if factors[1]:
                self._scale(node, node.inputs[0], 1.0 / factors[1] if node.op.label == "Div" else factors[1])
            elif node.op.label == "Mul":
                self._multiply(node, factors[0])
            self._scale_by_table(node)
        elif node.op in SUMS and (summed := summed_input(node, view)) is not None:
            over = f"{node.op.label}{node.inputs[1:]}{sorted(node.attributes.items())}"
            self._forms[node.outputs[0]] = {f"{over} {t}" if t else t: c for t, c in self._of(summed).items()}
        return False

    def absorbs(self, node: OpNode, rounding: float) -> bool:
        """Whether a sum adds less to a value than a few roundings of it: ``w - 0.001 * g``."""
        if node.op not in SUMS_OF_FEW:
            return False
        forms = [self._of(t) for t in node.inputs if not self._values.is_constant(t)]
        if any(t and t not in self._view.tensors for form in forms for t in form):
            return False  # sums of many: a mean is not small for being divided by their number
        sizes = [_size(form) for form in forms]
        return len(sizes) > 1 and 0.0 < min(sizes) <= _FEW_ROUNDINGS * rounding * min(max(sizes), 1.0)

    def is_far_from_zero(self, tensor: str) -> bool:
        """Whether a constant is added to what other constants make far smaller: ``5 + 0.05 * x``."""
        return _is_far(self._of(tensor))

    def scale_of(self, tensor: str, but: Container[str]) -> float:
        """The largest constant that something which varies is multiplied by, but for some tensors."""
        return _size({term: factor for term, factor in self._of(tensor).items() if term not in but})

    def _of(self, tensor: str) -> Mapping[str, float]:
        if self._values.is_constant(tensor):
            constant = self._values.number(tensor)
            return {"": constant} if constant else {}
        return self._forms.get(tensor, {tensor: 1.0})

    def _scale(self, node: OpNode, tensor: str, factor: float) -> None:
        self._forms[node.outputs[0]] = {t: c * factor for t, c in self._of(tensor).items()}

    def _multiply(self, node: OpNode, factor: float | None) -> None:
        a, b = map(self._of, node.inputs[:2])
        if factor:
            self._scale(node, node.inputs[1], factor)
        elif _is_far(a) and _is_far(b):  # (1 + s) * (1 + t)
            size = abs(b[""]) * _size(a) + abs(a[""]) * _size(b)
            self._forms[node.outputs[0]] = {"": a[""] * b[""], node.outputs[0]: size}

    def _scale_by_table(self, node: OpNode) -> None:
        """Follow a product with several numbers, or a quotient: it has a size, and cancels with nothing."""
        data = self._view.data_inputs
        for place in (1,) if node.op.label == "Div" else (0, 1):
            table, form = self._values.range(node.inputs[place]), self._of(node.inputs[1 - place])
            size = _size({term: factor for term, factor in form.items() if term not in data})
            is_table = self._values.is_constant(node.inputs[place]) and table.lowest != table.highest
            if is_table and size and math.isfinite(table.magnitude):
                factor = 1.0 / table.smallest if node.op.label == "Div" else table.magnitude
                self._forms[node.outputs[0]] = {node.outputs[0]: factor * size}

    def _add_sum(self, node: OpNode) -> bool:
        signs = (1.0, -1.0 if node.op.label == "Sub" else 1.0)
        total: dict[str, float] = {}
        sizes: dict[str, float] = {}
        for position, tensor in enumerate(node.inputs):
            sign = signs[min(position, 1)]
            for term, factor in self._of(tensor).items():
                total[term] = total.get(term, 0.0) + sign * factor
                sizes[term] = sizes.get(term, 0.0) + abs(factor)
        cancels = any(abs(total[t]) < _CANCELS * sizes[t] for t in total if t or _is_far(sizes))
        rest = [t for t in total if abs(total[t]) >= _CANCELS * sizes[t]]
        rest.sort(key=lambda t: -abs(total[t]))
        form = {t: total[t] for t in rest[:_MOST_TERMS]}
        if len(rest) > _MOST_TERMS:
            form[node.outputs[0]] = total[rest[_MOST_TERMS]]
        self._forms[node.outputs[0]] = form
        return cancels


def _size(form: Mapping[str, float]) -> float:
    """The largest factor of something that varies."""
    return max((abs(factor) for term, factor in form.items() if term), default=0.0)


def _is_far(form: Mapping[str, float]) -> bool:
    return abs(form.get("", 0.0)) > _FAR * _size(form) > 0.0
