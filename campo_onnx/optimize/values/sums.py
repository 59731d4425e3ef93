"""Squares and sums of many values.

Squares overflow FP16, or become zero before they are summed. Of sums, how many values are added up in each
element: of chains of sums, and of products of what is not negative.
"""

import math
from collections.abc import Mapping

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.canonical import contracted_terms
from campo_onnx.optimize.values.functions import Signs
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CARRIERS_OF_SQUARES,
    CONTRACTIONS,
    MOVES,
    MOVES_AND_SIGNS,
    PARTS,
    ROOTS,
    SCALES,
    SHARES,
    SUMS,
    SUMS_OF_SQUARES,
    adds_up,
    gives_many_shares,
    is_mean,
    leading_to_sums,
    squared,
    summed_input,
    terms_of,
)

_LONG_SUM = 4096.0
"""A sum of so many values of unknown size may overflow FP16: 16 on average are enough."""

_LONG_SUM_OF_ONE_SIGN = 1024.0
"""Bound for sums that cannot cancel, which are larger: 64 on average are enough."""

_LONG_RUN = 256.0
"""Bound for running sums: 256 on average are enough."""

_KEEPING = having(Trait.MOVES, Trait.SIGN, Trait.SAME_SIZE, Trait.NO_LARGER) - op_keys("Log")
_AS_LARGE = MOVES | op_keys("Add Sub Neg")
_SELECTS = op_keys("Mul Where")
_MOST = 1e30


class Accumulated:
    """Sums in the forward pass: how many values are added up in each element."""

    def __init__(self, values: GraphValues) -> None:
        # How many values of size 1 a tensor's elements hold, by name; those of one value are left out.
        self.terms: dict[str, float] = dict(values.loops)
        self.of_one_sign: set[str] = set()  # tensors whose terms cannot cancel
        self.running = set(values.loops)  # running sums: of CumSum, of loops
        self._values, self._view = values, values.view
        for node in values.forward_nodes:
            self._add(node)

    def is_long(self, tensor: str) -> bool:
        """Whether a sum of so many values may overflow FP16."""
        terms = self.terms.get(tensor, 1.0)
        if tensor in self.running:
            return terms >= _LONG_RUN
        return terms >= (_LONG_SUM_OF_ONE_SIGN if tensor in self.of_one_sign else _LONG_SUM)

    def _add(self, node: OpNode) -> None:
        output = next((t for t in node.outputs if t), "")
        if not self._view.is_float32(output):
            return
        terms = min(max(self._terms(node), self.terms.get(output, 1.0)), _MOST)
        if terms > 1.0:
            self.terms.update((t, terms) for t in node.outputs if t and self._view.is_float32(t))
            inputs = [t for t in node.inputs if self._view.is_float32(t)]
            if node.op.label == "CumSum" or any(t in self.running for t in inputs):
                self.running.update(t for t in node.outputs if t)
            if all(t in self.of_one_sign or self._is_signed(t) for t in inputs):
                self.of_one_sign.update(t for t in node.outputs if t)

    def _terms(self, node: OpNode) -> float:
        view, of = self._view, self._of
        inputs = [t for t in node.inputs if t]
        summed = summed_input(node, view)
        if summed is not None:
            return of(summed) * (1 if is_mean(node) else max(terms_of(node, view), 1))
        if node.op in CONTRACTIONS:
            return self._of_product(node)
        if adds_up(node, self._values):
            return of(inputs[0]) * max(terms_of(node, view), 1)
        if not any(t in self.terms for t in inputs):
            return 1.0
        if node.op.label == "Mul":
            return of(inputs[0]) * of(inputs[1])
        if node.op.label == "Div":
            return of(inputs[0]) / of(inputs[1])
        if node.op.label == "Sqrt":
            return math.sqrt(of(inputs[0]))
        if node.op in _KEEPING:
            return max(of(t) for t in inputs)
        return 1.0

    def _of(self, tensor: str) -> float:
        if self._values.is_constant(tensor):
            r = self._values.range(tensor)
            return r.magnitude or 1.0 if r.lowest == r.highest else 1.0
        return self.terms.get(tensor, 1.0)

    def _of_product(self, node: OpNode) -> float:
        """Products of matrices of which neither has negative elements, or one of which chooses rows."""
        a, b = node.inputs[:2]
        terms = contracted_terms(node, self._view)
        ranges = self._values.of((a, b))
        if any(r.is_integer and r.varies and 0.0 <= r.lowest <= r.highest <= 1.0 for r in ranges):
            return max(self._of(a), self._of(b)) * terms
        if adds_up(node, self._values):
            if any(r.is_integer and not r.varies for r in ranges):  # ones below a diagonal: a running sum
                self.running.update(t for t in node.outputs if t)
            share = min(min((r.magnitude for r in ranges if not r.varies), default=1.0), 1.0)
            return max(self.terms.get(a, 1.0), self.terms.get(b, 1.0)) * max(terms * share, 1.0)
        if all(r.lowest >= 0.0 for r in ranges) and not any(self._is_share(t) for t in (a, b)):
            return self._of(a) * self._of(b) * terms
        return max(self._of(a), self._of(b))

    def _is_share(self, tensor: str) -> bool:
        producer = self._view.producer.get(self._view.origin(tensor, MOVES))
        return producer is not None and producer.op in SHARES

    def _is_signed(self, tensor: str) -> bool:
        """Whether no element is negative, or none positive, up to factors that are masks or weights."""
        r = self._values.range(tensor)
        if r.lowest >= 0.0 or r.highest <= 0.0:
            return True
        producer = self._view.producer.get(self._view.origin(tensor, MOVES))
        if producer is None or producer.op not in _SELECTS:
            return False
        return any(
            (r.lowest >= 0.0 or r.highest <= 0.0) and not r.is_bounded and r.varies
            for r in map(self._values.range, producer.inputs)
        )


def long_sums(values: GraphValues, sums: Accumulated) -> Mapping[str, int]:
    """Find sums over thousands of activations, and what reads them until they are divided.

    The sum of 65,536 values of 1 overflows FP16; a mean over them does not, since kernels add up in FP32. Of
    gradients :mod:`campo_onnx.optimize.values.gradient_sums` knows more. What is divided by such a sum is as
    large as that: both parts of linear attention.
    """
    counts: dict[str, int] = {}
    for node in values.view.nodes if sums.terms else ():
        tensors = (*node.outputs, *node.inputs)
        long = [t for t in tensors if t and sums.is_long(t) and not values.fits(t)]
        if not long:
            continue
        counts[node.name] = int(max(sums.terms[t] for t in long))
        if node.op.label == "Div" and node.inputs[1] in long:
            counts.update(_as_large(node.inputs[0], sums.terms[node.inputs[1]], values.view))
    return counts


def _as_large(tensor: str, terms: float, view: GraphView) -> Mapping[str, int]:
    """Nodes that compute what has as many terms as it is divided by."""
    counts: dict[str, int] = {}
    pending = [(tensor, terms)]
    while pending:
        name, size = pending.pop()
        producer = view.producer.get(name)
        if producer is None or size < _LONG_SUM or producer.name in counts:
            continue
        if producer.op in CONTRACTIONS:
            counts[producer.name] = int(size)
            inner = size / max(contracted_terms(producer, view), 1)
            pending += [(t, inner) for t in producer.inputs[:2]]
        elif producer.op in _AS_LARGE:
            counts[producer.name] = int(size)
            pending += [(t, size) for t in producer.inputs if view.is_float32(t)]
        elif (summed := summed_input(producer, view)) is not None and not is_mean(producer):
            counts[producer.name] = int(size)
            pending.append((summed, size / max(terms_of(producer, view), 1)))
    return counts


_LONG = 16
"""The norm of so many values, each below 2**14, may overflow."""

_SINES = op_keys("Sin")
_AS_SMALL = MOVES_AND_SIGNS | PARTS
_KEEPING_NORMS = MOVES | op_keys("Add Clip Max Sum")


def squares_summed(values: GraphValues) -> Mapping[str, str]:
    """Find squares that lead to a sum, the sum, and what computes with it down to its root.

    A square overflows FP16 from 256 on and vanishes below 0.00024: a norm is then infinite or a fraction of
    what it is. Squares that the low precision is proved to hold do not count, unless they are of differences,
    sines or shares of many, which may be small. The root of a sum over more than a few values may overflow
    itself: what reads it is FP32 too.
    """
    return _Squares(values).nodes


class _Squares:
    """One run of :func:`squares_summed`: tensors of squares, sums of many of them, and their roots."""

    def __init__(self, values: GraphValues) -> None:
        self.nodes: dict[str, str] = {}
        self._values, self._view = values, values.view
        self._to_sums = leading_to_sums(values)
        self._leads_on = leading_to_sums(values, to_roots=True)
        self._squares: set[str] = set()
        self._long_sums: set[str] = set()
        self._norms: set[str] = set()
        self._signs = Signs(values)
        self._small: set[str] = set()  # differences, and shares of many: their squares vanish
        for node in self._view.nodes:
            self._add(node)

    def _add(self, node: OpNode) -> None:
        outputs = [t for t in node.outputs if t]
        self._signs.follow(node)
        if self._is_small(node):
            self._small.update(outputs)
        source = squared(node, self._view)
        if source is not None and not self._holds_squares(source):
            self._add_square(node, source, outputs)
        elif (norm := next((t for t in node.inputs if t in self._norms), None)) is not None:
            self.nodes[node.name] = norm
            if node.op in _KEEPING_NORMS:
                self._norms.update(outputs)
        elif outputs and self._view.is_float32(outputs[0]):
            read = next((t for t in node.inputs if t in self._squares), None)
            if read is not None:
                self._add_consumer(node, read, outputs)

    def _is_small(self, node: OpNode) -> bool:
        """Whether a node takes values off each other, gives sines, or shares of a whole with many parts."""
        varying = [t for t in node.inputs if self._view.is_float32(t) and not self._values.is_constant(t)]
        if node.op in _SINES or (len({*varying}) == 2 and self._signs.is_difference(node)):
            return True
        if gives_many_shares(node, self._view):
            return True
        return node.op in _AS_SMALL and bool(varying) and self._small.issuperset(varying)

    def _holds_squares(self, tensor: str) -> bool:
        if tensor in self._small:
            return False
        bound, terms = self._values.range(tensor).bound, self._view.tensors[tensor].elements or 1
        return bound * bound * terms <= self._values.low.largest

    def _add_square(self, node: OpNode, source: str, outputs: list[str]) -> None:
        is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS
        if is_sum or node.outputs[0] in self._leads_on or source in self._squares:
            self.nodes[node.name] = source
            self._squares.update(outputs)
        if self._is_long_sum(node):
            (self._norms if node.op.op_type == "ReduceL2" else self._long_sums).update(outputs)

    def _add_consumer(self, node: OpNode, read: str, outputs: list[str]) -> None:
        if node.op in ROOTS:
            self.nodes[node.name] = read
            if read in self._long_sums:
                self._norms.update(outputs)
            return
        is_sum = node.op in SUMS or summed_input(node, self._view) is not None or adds_up(node, self._values)
        if not is_sum and node.op not in CARRIERS_OF_SQUARES:
            return
        if is_sum or node.outputs[0] in self._leads_on or read not in self._to_sums:
            self.nodes[node.name] = read
            # A product or quotient with something that varies is no square any more.
            others = (t for t in node.inputs if t not in self._squares)
            if node.op not in SCALES or all(map(self._values.is_constant, others)):
                self._squares.update(outputs)
        # Divided by their number they are a mean, whose root is no larger than what was squared.
        is_sum_still = read in self._long_sums and node.op not in SCALES
        if is_sum_still or self._is_long_sum(node):
            self._long_sums.update(outputs)

    def _is_long_sum(self, node: OpNode) -> bool:
        """Whether so many values are summed that the root of their squares is large beside each of them."""
        is_sum = node.op in SUMS_OF_SQUARES or node.op in CONTRACTIONS or node.op in SUMS
        return is_sum and not is_mean(node) and terms_of(node, self._view) >= _LONG
