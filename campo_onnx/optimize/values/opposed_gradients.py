"""Gradients that cancel, since the difference of what they are of is far smaller than its terms."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from onnx import TensorProto

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import current, having
from campo_onnx.ops.spec import Family
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES,
    PARTS,
    SCALES,
    SUMS_OF_FEW,
    SUMS_OF_SQUARES,
    is_sum,
)

_FACTORS = dict.fromkeys(op_keys("com.microsoft:GatedAdd"), (1, 2))  # x + y * gate
_MERGES = SUMS_OF_FEW | _FACTORS.keys()
_LINEAR = MOVES | PARTS | SCALES | _MERGES | op_keys("Concat Neg Pad Where")
_NORMS = SUMS_OF_SQUARES | having(Trait.EXTREME)
_NUMBERS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
_MOST_SOURCES = 8

_Sources: TypeAlias = frozenset[str]


class _Multiple(NamedTuple):
    """A gradient times functions of some tensors of the forward pass."""

    gradient: str
    sign: int
    of: _Sources


_Multiples: TypeAlias = frozenset[_Multiple]
_NONE: _Multiples = frozenset()


class OpposedGradients:
    """Sums of the backward pass in which multiples of a gradient by functions of the same values cancel.

    The gradient of ``E[x^2] - E[x]^2`` is ``2 * g * x - 2 * g * E[x]``, that of ``x / |x|`` a projection.
    Where a difference of statistics is far smaller than its terms, so is the sum of their gradients; and that
    of a difference of bent functions, ``lgamma(n + r) - lgamma(r)``.
    """

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view, self._specs = values, values.view, current()
        self._sources: dict[str, _Sources] = {}
        self._multiples: dict[str, _Multiples] = {}
        self._differences: set[_Sources] = set()
        self._turned: set[str] = set()  # tensors that are scaled or summed, and then turned
        self._positions = {t: i for i, node in enumerate(values.view.nodes) for t in node.outputs}

    def add_difference(self, node: OpNode) -> None:
        """Take in a node of the forward pass that computes such a difference."""
        self._differences.add(self.sources(node.outputs[0]))

    def add_forward(self, node: OpNode) -> None:
        """Follow what is computed of the forward pass element by element, and its sums."""
        is_elementwise = self._specs.spec(node.op).family is Family.ELEMENTWISE
        if is_elementwise or node.op in _LINEAR | _NORMS or is_sum(node, self._values):
            self._add_sources(node, [t for t in node.inputs if t])

    def opposed(self) -> Iterator[OpNode]:
        """Nodes of the backward pass in which multiples of a gradient meet that may cancel."""
        others = self._values.scaling.forward | self._values.scaling.unscaled
        if self._values.scaling.forward and self._differences:
            for node in reversed(self._view.nodes):
                leading = (t for i, t in enumerate(node.inputs) if t and self._leads_to_turn(node, i))
                self._turned.update(leading)
            yield from (n for n in self._view.nodes if n.name not in others and self._cancels(n))

    def _cancels(self, node: OpNode) -> bool:
        parts = [self._part(node, i, t) for i, t in enumerate(node.inputs) if self._is_number(t)]
        is_followed = node.op in _LINEAR | CONTRACTIONS or is_sum(node, self._values)
        union = _NONE.union(*parts) if is_followed else _NONE
        met = union if node.op in _MERGES else _NONE
        opposed = {a for a in met for b in met if self._are_opposed(a, b)}
        rest = frozenset(sorted(union - opposed, key=self._order)[:_MOST_SOURCES])
        if opposed:  # what they leave is a gradient of its own
            rest |= {_Multiple(node.outputs[0], 1, frozenset())}
        self._multiples.update((t, rest) for t in node.outputs if t and rest)
        if not any(one.gradient for one in union):
            self.add_forward(node)  # a function of the forward pass alone, perhaps
        return bool(opposed)

    def _part(self, node: OpNode, position: int, tensor: str) -> _Multiples:
        """The multiples that an input brings in; a gradient that is read with either sign begins here."""
        uses = self._view.consumers[tensor]
        multiples = set(self._multiples.get(tensor, ()))
        readers = [(self._view.node[use.node], use.position) for use in uses]
        signs = ({turns(*reader) for reader in readers} for turns in (_turns, self._leads_to_turn))
        is_gradient = not self._values.is_constant(tensor) and not self._is_function(tensor)
        if is_gradient and any(len(of_readers) > 1 for of_readers in signs):
            multiples.add(_Multiple(tensor, 1, frozenset()))
        # Without a loss scale the first gradient is a number, which has been folded into something.
        if self._values.scaling.scale is None and not multiples and self._is_function(tensor):
            multiples.add(_Multiple("", 1, self.sources(tensor)))
        factors = _FACTORS.get(node.op, (0, 1) if node.op in SCALES | CONTRACTIONS else ())
        others = [self.sources(node.inputs[i]) for i in factors if position in factors and i != position]
        is_turned = _turns(node, position) != self._is_reversed(node, position)
        sign = -1 if is_turned else 1
        return frozenset(_Multiple(one.gradient, one.sign * sign, one.of.union(*others)) for one in multiples)

    def _leads_to_turn(self, node: OpNode, position: int) -> bool:
        """Whether a node turns the sign of an input, or leads to where it is turned before it is added."""
        if _turns(node, position):
            return True
        return node.outputs[0] in self._turned and (node.op in SCALES | MOVES or is_sum(node, self._values))

    def _order(self, one: _Multiple) -> tuple[int, int, list[str]]:
        """The last gradients first: whatever they are called, these meet next."""
        return -self._positions.get(one.gradient, -1), one.sign, sorted(one.of)

    def _is_reversed(self, node: OpNode, position: int) -> bool:
        """Whether a node multiplies one of its inputs by a negative constant."""
        others = [t for i, t in enumerate(node.inputs) if i != position] if node.op in SCALES else []
        return any(self._values.is_constant(t) and self._values.range(t).highest < 0.0 for t in others)

    def _is_function(self, tensor: str) -> bool:
        """Whether a tensor is computed of the forward pass alone."""
        sources = self.sources(tensor)
        return bool(sources) and all(map(self._is_of_forward, sources))

    def _is_of_forward(self, tensor: str) -> bool:
        producer, scaling = self._view.producer.get(tensor), self._values.scaling
        return tensor != scaling.scale if producer is None else producer.name in scaling.forward

    def _are_opposed(self, a: _Multiple, b: _Multiple) -> bool:
        """Whether one gradient is multiplied by functions of values whose statistics differ little."""
        is_one = a.gradient == b.gradient and a.sign == -b.sign and bool(a.of) and bool(b.of)
        return is_one and any(a.of | b.of <= sources for sources in self._differences)

    def _add_sources(self, node: OpNode, tensors: list[str]) -> None:
        every: _Sources = frozenset().union(*(self.sources(t) for t in tensors))
        if len(every) <= _MOST_SOURCES:
            self._sources.update((t, every) for t in node.outputs if t)

    def sources(self, tensor: str) -> _Sources:
        """Give the tensors that a tensor is computed of, as far as that is followed."""
        if self._values.is_constant(tensor) or not self._is_number(tensor):
            return frozenset()
        return self._sources.get(tensor, frozenset({tensor}))

    def _is_number(self, tensor: str) -> bool:
        return bool(tensor) and self._view.tensors[tensor].dtype in _NUMBERS


def _turns(node: OpNode, position: int) -> bool:
    """Whether a node turns the sign of one of its inputs."""
    return node.op.label == "Neg" or (node.op.label == "Sub" and position == 1)
