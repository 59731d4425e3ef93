"""Tensors as functions of others, element by element: two functions of the same values may be close."""

from collections.abc import Iterable, Sequence

from onnx import TensorProto

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import OpKey, op_keys
from campo_onnx.ops.registry import current, having
from campo_onnx.ops.spec import Family
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    MOVES,
    MOVES_AND_SIGNS,
    PARTS,
    SCALED,
    SCALES,
    SUMS_OF_FEW,
    SUMS_OF_SQUARES,
    is_sum,
)

_EXP = OpKey("", "Exp")
_ONE = MOVES | PARTS | op_keys("Neg")
_PLACED = MOVES | op_keys("Where")
_KEEPING_BITS = MOVES_AND_SIGNS | having(Trait.EXTREME) | op_keys("Clip LeakyRelu Relu Sign Slice Where")
_LINEAR = _KEEPING_BITS | SUMS_OF_FEW | op_keys("Mul")
_REDUCES = SUMS_OF_SQUARES | op_keys("CumProd ReduceLogSumExp ReduceMax ReduceMin ReduceProd")
_STEPS = having(Trait.ROUNDS)
_GATES = having(Trait.SHARES) | op_keys("Erf HardSigmoid Sigmoid Softsign Tanh")
_MOST_SOURCES = 6


class Signs:
    """The signs of tensors: proved ones, and else whether they are the negative of something.

    A difference may be written as ``a - b``, ``a + (-b)`` or ``-b + a``.
    """

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


class Functions:
    """The tensors that each is computed from element by element, and what has been rounded since.

    Of ``s + t`` and ``2 * sqrt(s * t)`` both are functions of s and t, so that their difference may be far
    smaller than either; so may ``exp(x) - 1`` be, and the determinant ``x[0] * y[1] - x[1] * y[0]``. A
    projection is a function of what it is taken from, ``b - a * sum(a * b)``, and whatever is added to a
    difference of functions of the same values may cancel it.
    """

    def __init__(self, values: GraphValues, signs: Signs) -> None:
        self._values, self._view, self._specs, self._signs = values, values.view, current(), signs
        self._sources: dict[str, frozenset[str]] = {}
        self._rounded: set[str] = set()
        self._bent: set[str] = set()
        self._summed: set[str] = set()  # sums and extremes, not yet multiplied by anything that varies
        self._ratios: set[str] = set()  # quotients of two functions of the same values
        self._units: set[str] = set()  # values divided by a sum of them: of a length that does not change
        self._pairs: set[str] = set()  # products of two of these
        self._cosines: set[str] = set()
        self._gates: set[str] = set()  # near 1 only where their arguments are large
        self._stepped: set[str] = set()  # whole numbers, and what a narrower type holds
        self._differences: set[str] = set()  # of functions of the same values
        self._parts: dict[str, tuple[str, str]] = {}  # the tensor that something is a part of, and which part
        self._crossed: dict[str, frozenset[str]] = {}  # of two parts in different places, what they are of

    def are_placed(self, node: OpNode) -> bool:
        """Whether each element of a result is computed from those in the same place, or from neighbours."""
        is_elementwise = self._specs.spec(node.op).family is Family.ELEMENTWISE
        return node.op in _PLACED or is_elementwise or self._is_most(node)

    def _is_most(self, node: OpNode) -> bool:
        """Whether a node takes more than half of a tensor, so that two such parts are neighbours."""
        if node.op.label != "Slice":
            return False
        whole, part = (self._view.tensors[t].elements or 0 for t in (node.inputs[0], node.outputs[0]))
        return 2 * part > whole

    def _is_larger(self, result: str, tensors: Sequence[str]) -> bool:
        """Whether a result is larger than all it is computed of: sums of rows times sums of columns."""
        size, *sizes = (self._view.tensors[t].elements or 0 for t in (result, *tensors))
        return size > max(sizes)

    def are_sums(self, tensors: Iterable[str]) -> bool:
        """Whether tensors are sums, extremes, or computed of these alone."""
        return self._summed.issuperset(tensors)

    def are_bent(self, tensors: Iterable[str]) -> bool:
        """Whether tensors are functions with a slope that varies."""
        return self._bent.issuperset(tensors)

    def is_cosine(self, node: OpNode) -> bool:
        """Whether a node that was followed gives a sum that no scaling of its values changes."""
        return not self._cosines.isdisjoint(node.outputs)

    def is_remainder(self, node: OpNode) -> bool:
        """Whether a node that met takes steps off a value: a step elsewhere is off by all of it."""
        return not self._stepped.isdisjoint(node.inputs)

    def meet(self, node: OpNode) -> bool:
        """Follow a node; say whether it takes a function of some values from another of the same."""
        varying = [t for t in node.inputs if self._is_number(t) and not self._values.is_constant(t)]
        outputs = [t for t in node.outputs if self._is_number(t)]
        if not varying or not outputs:
            return False
        self._follow_parts(node, varying, outputs)
        reduces = node.op in _REDUCES or is_sum(node, self._values)
        if not reduces and not self.are_placed(node):
            return False
        is_of_sums = self._summed.issuperset(varying)
        if reduces or (is_of_sums and not self._is_larger(outputs[0], varying)):
            self._summed.update(outputs)
        elif not is_of_sums and not self._summed.isdisjoint(varying) and node.op not in SCALES:
            return False  # a mean is no projection
        sources = [self._sources.get(t, frozenset({t})) for t in varying]
        every = frozenset[str]().union(*sources)
        if len(every) <= _MOST_SOURCES:
            self._sources.update((t, every) for t in outputs)
        is_rounded = any(t in self._rounded for t in varying)
        is_bent = any(t in self._bent for t in varying)
        is_step = node.op in _STEPS or self._dtype(outputs[0]) != TensorProto.FLOAT
        if is_step or (node.op in SCALED and not self._stepped.isdisjoint(varying)):
            self._stepped.update(outputs)
        if is_rounded or is_step or node.op not in _KEEPING_BITS:
            self._rounded.update(outputs)
        is_ratio = node.op.label == "Div" and len(varying) == 2 and self._are_alike(*sources)
        if is_ratio or (node.op in _KEEPING_BITS and not self._ratios.isdisjoint(varying)):
            self._ratios.update(outputs)
        self._follow_units(node, varying, is_ratio=is_ratio, reduces=reduces)
        if is_bent or node.op not in _LINEAR:
            self._bent.update(outputs)
        is_power = node.op in _LINEAR or node.op.label == "Pow"
        if node.op in _GATES or (is_power and self._gates.issuperset(varying)):
            self._gates.update(outputs)
        meets = node.op in SUMS_OF_FEW and self._are_close(node, varying, sources)
        if meets or (node.op in _LINEAR and not self._differences.isdisjoint(varying)):
            self._differences.update(outputs)
        return meets

    def _follow_units(self, node: OpNode, varying: Sequence[str], *, is_ratio: bool, reduces: bool) -> None:
        output = node.outputs[0]
        are_units = len({*varying}) == 2 and self._units.issuperset(varying)
        if is_ratio and self._summed.issuperset(varying):
            self._cosines.add(output)  # (x * y) / (|x| * |y|)
        elif reduces and (are_units or not self._pairs.isdisjoint(varying)):
            self._cosines.add(output)  # (x / |x|) * (y / |y|)
        elif is_ratio and varying[1] in self._summed:
            self._units.add(output)
        elif node.op.label == "Mul" and are_units:
            self._pairs.add(output)
        elif node.op in _KEEPING_BITS:
            for kind in (self._units, self._pairs):
                if not kind.isdisjoint(varying):
                    kind.add(output)

    def _are_alike(self, a: frozenset[str], b: frozenset[str]) -> bool:
        """Whether functions are of the same values, the one perhaps of more."""
        return a <= b or b <= a

    def _are_close(self, node: OpNode, varying: Sequence[str], sources: Sequence[frozenset[str]]) -> bool:
        """Whether the terms of a sum may cancel."""
        is_difference = self._signs.is_difference(node)
        if len(varying) == 1:
            if not is_difference:
                return False
            term = varying[0]
            is_last = term == node.inputs[1]
            is_taken = self._signs.is_negative(term) != (is_last and node.op.label == "Sub")
            constant = self._values.number(node.inputs[not is_last])
            is_share = is_taken and term in self._gates and abs(constant or 1.0) >= 1.0  # 1 - sigmoid(x)
            is_close = term in self._ratios or (term in self._bent and not is_share)
            return is_close and constant != 0.0
        if len(varying) > 2 or varying[0] == varying[1]:
            return False
        a, b = varying
        are_alike = self._are_alike(*sources)
        is_rounded = a in self._rounded or b in self._rounded
        if not is_difference:
            return are_alike and is_rounded and not self._differences.isdisjoint(varying)
        is_determinant = a in self._crossed and self._crossed[a] == self._crossed.get(b)
        return is_determinant or (is_rounded and (are_alike or self._is_twice(a, b, *sources)))

    def _is_twice(self, a: str, b: str, *sources: frozenset[str]) -> bool:
        """Whether both are one function, bent, of partly the same values: ``exp(-r * t) - exp(-s * t)``."""
        producers = [self._view.producer.get(self._view.origin(t, MOVES_AND_SIGNS)) for t in (a, b)]
        op, other = (None if node is None else self._bend(node) for node in producers)
        is_bend = op is not None and op == other and op not in _LINEAR | SCALED
        return is_bend and not sources[0].isdisjoint(sources[1])

    def _bend(self, node: OpNode) -> OpKey:
        is_exponential = node.op.label == "Pow" and self._values.is_constant(node.inputs[0])
        return _EXP if is_exponential else node.op

    def _dtype(self, tensor: str) -> int | None:
        info = self._view.tensors.get(tensor)
        return None if info is None else info.dtype

    def _is_number(self, tensor: str) -> bool:
        return self._dtype(tensor) not in (None, TensorProto.BOOL)

    def _follow_parts(self, node: OpNode, varying: Sequence[str], outputs: Sequence[str]) -> None:
        view, parts = self._view, self._parts
        if node.op in PARTS:
            whole = self._computed_as(view.origin(varying[0], MOVES))
            place = " ".join(str(view.values[t].tolist()) for t in node.inputs[1:] if t in view.values)
            parts.update((t, (whole, f"{place} {i}")) for i, t in enumerate(outputs))
        elif node.op in MOVES or (node.op in SCALED and len(varying) == 1):  # or times a constant
            data = varying[0]
            parts.update({outputs[0]: parts[data]} if data in parts else {})
            self._crossed.update({outputs[0]: self._crossed[data]} if data in self._crossed else {})
        elif node.op.label == "Mul" and len(varying) == 2 and all(t in parts for t in varying):
            (a, here), (b, there) = (parts[t] for t in varying)
            if here != there:
                self._crossed[outputs[0]] = frozenset({a, b})

    def _computed_as(self, tensor: str) -> str:
        """A name that tensors share which two like nodes compute, of the same values."""
        producer = self._view.producer.get(tensor)
        is_placed = producer is not None and self.are_placed(producer) and len(producer.inputs) > 1
        return f"{producer.op.label}{producer.inputs}" if producer is not None and is_placed else tensor
