"""Differences of close values, which need their terms more exactly than the terms alone tell."""

from collections.abc import Mapping

from onnx import TensorProto

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import current, having
from campo_onnx.ops.spec import PRODUCTS_AND_NORMS, Family
from campo_onnx.ops.values.need import EXACT, Need, Needs, have_one_sign
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.functions import Functions, Signs
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.linear import LinearForms
from campo_onnx.optimize.values.opposed_gradients import OpposedGradients
from campo_onnx.optimize.values.positions import raw_inputs
from campo_onnx.optimize.values.sum_ops import (
    MOVES,
    MOVES_AND_SIGNS,
    PARTS,
    SCALED,
    SCALES,
    SUMS_OF_FEW,
    SUMS_OF_SQUARES,
    is_sum,
    leading_to_sums,
)
from campo_onnx.optimize.values.sums import Accumulated

_STATISTICS = SUMS_OF_SQUARES | op_keys("LogSoftmax ReduceLogSumExp")
_OF_STATISTICS = (
    MOVES_AND_SIGNS
    | having(Trait.ADDS, Trait.SCALES, Trait.PART)
    | op_keys("Clip Exp GatherElements GatherND Log Max Min Pow Reciprocal Relu Softplus Sqrt")
)
_EXTREMES = having(Trait.EXTREME)
_LOOK_FOR_OVERFLOW = op_keys("IsInf IsNaN")
_GIVE_NAN = op_keys("Div Sub")  # of two infinities
_STEEP_AT_ONE = op_keys("Acos Acosh Asin Atanh")
_ORDERS = op_keys("ArgMax ArgMin Hardmax TopK")
_TELLS_APART = op_keys("ArgMax ArgMin LogSoftmax ReduceLogSumExp Softmax TopK")
_KEEPING_SIGNS = MOVES | SUMS_OF_FEW - op_keys("Sub") | PARTS | op_keys("Max Min")
_BOTH = frozenset({-1, 1})
_INTEGERS = frozenset(
    {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8}
)
_ROUNDINGS = 16.0
_STEEP = 64.0
"""A softmax at a temperature below 1/64 makes several percent of a rounding."""

_SEVERAL = "*"


def close_differences(values: GraphValues, sums: Accumulated) -> Mapping[str, Needs]:
    """Say what nodes ask of their inputs, by name, whose differences may be far smaller than their terms.

    - Of a value and its rounding: ``x - float(half(x))`` is what rounding takes from x, and where x is
      rounded before, nothing is left.
    - Of sums that have a term in common, which cancels.
    - Sums that add less than a rounding: nothing is left of the step in ``w - 0.001 * g``.
    - Of values close together far from zero, ``x + 500``, from their mean; their softmax and the largest.
      In a softmax at a low temperature any values are close together.
    - Of values that are divided by each other as well.
    - Of statistics of many values: two distances, two log-probabilities, 1 less a cosine.
    - Of close values, summed up: links of a graph beyond those that are expected cancel in a sum.
    - Of functions of the same values: x - sin(x), k * log(r) - r.
    - Of data as it comes in, which nothing has rounded yet, and in an order of what is computed of it.
    - Of statistics, in the backward pass: what a difference of them leaves of a gradient.
    - Of what the loss is computed of, in the backward pass: once a network has learned y, ``sigmoid(x) - y``
      is small, and so is the slope ``1 - sigmoid(x)``.
    - Of what is asked whether it is infinite: it overflows in a narrow precision. Or not a number, as
      the difference of two such values is.
    - Of long sums of one sign: 500 log-probabilities are off by 0.25 in FP16, and another model's
      sum lies 1 apart.
    """
    search, differences = _Close(values), {}
    for node in values.view.nodes:
        need = search.need(node)
        if need is None and node.op in SUMS_OF_FEW and len(node.inputs) == 2:
            need = _of_sums(node, values, sums)
        if need is not None:
            differences[node.name] = dict.fromkeys(range(len(node.inputs)), need)
    for node in search.gradients.opposed():
        differences[node.name] = dict.fromkeys(range(len(node.inputs)), EXACT)
    return differences


class _Close:
    """One run of :func:`close_differences`: sums of terms, statistics, and data as it comes in."""

    def __init__(self, values: GraphValues) -> None:
        self._values, self._view, self._specs = values, values.view, current()
        self._raw = raw_inputs(values)
        # The factor of an additive mask is not a temperature, with or without a declared range.
        self._inputs = self._raw.union(self._view.data_inputs)
        self._weights = self._view.trained_inputs
        self._of_data = set(self._raw)
        self._deviations: set[str] = set()  # of data, in units of its own, and gradients times these
        self._to_sums = leading_to_sums(values)
        self._of_loss = _beside_loss(values)
        self._forms = LinearForms(values)
        self._forward = {node.name for node in values.forward_nodes}
        self._offsets: dict[str, float] = {}  # the constant in data, where the data itself is of size 1
        self._statistics: set[str] = set()
        self._residuals: set[str] = set()  # deviations from what statistics predict: they cancel in a sum
        self._of_terms: dict[str, frozenset[int]] = {}
        self._signs = Signs(values)
        self._functions = Functions(values, self._signs)
        self.gradients = OpposedGradients(values)

    def need(self, node: OpNode) -> Need | None:
        """Accuracy that a node asks of all its inputs."""
        view, values = self._view, self._values
        varying = [t for t in node.inputs if view.is_float32(t) and not values.is_constant(t)]
        self._signs.follow(node)
        cancels = self._forms.add(node) and len(set(node.inputs)) > 1  # x - x tells NaN from numbers
        meets = self._functions.meet(node)
        is_variance = meets and self._functions.are_sums(varying)  # in a backward pass, too: computed again
        is_slope = self._is_slope_of_loss(node, varying)
        is_of_data = self._is_of_data(node, varying) or self._is_of_deviations(node, varying)
        need = EXACT if cancels or is_variance or is_slope or is_of_data else None
        if node.name in self._forward:
            self.gradients.add_forward(node)
        if node.name in self._forward and varying:
            absorbs = self._forms.absorbs(node, 2.0 ** -(self._values.low.fraction_bits + 1))
            is_far = self._tells_apart_far_from_zero(node, varying)
            is_of_statistics = self._is_of_statistics(node, varying)
            is_close = is_of_statistics or self._is_beside_quotient(node, varying)
            are_bent = meets and len(varying) > 1 and self._functions.are_bent(varying)
            if is_variance or are_bent or (is_of_statistics and view.tensors[node.outputs[0]].elements != 1):
                # One number of statistics of several values may be a loss, a sum of others.
                self.gradients.add_difference(node)
            looks_for_overflow = node.op in _LOOK_FOR_OVERFLOW and self._may_overflow(node)
            if absorbs or meets or is_far or is_close or looks_for_overflow:
                need = Need(is_place=True) if meets and self._functions.is_remainder(node) else EXACT
            is_steep = node.op in _STEEP_AT_ONE and self._statistics.issuperset(varying)
            if is_steep or self._functions.is_cosine(node) or self._normalizes_weight(node):
                self.gradients.add_difference(node)
            if self._is_statistic(node, varying):
                self._statistics.update(t for t in node.outputs if t)
                self._of_terms[node.outputs[0]] = self._signs_of(node, varying)
        if node.name in self._forward and varying:
            is_residual = len(varying) > 1 and self._signs.is_difference(node) and (is_of_statistics or meets)
            if is_residual or (node.op in SCALED and not self._residuals.isdisjoint(varying)):
                self._residuals.add(node.outputs[0])
            elif is_sum(node, values) and not self._residuals.isdisjoint(varying):
                need = need if self._has_one_sign(node) else EXACT
        is_followed = is_sum(node, values) or node.op in _EXTREMES
        is_followed = is_followed or self._functions.are_placed(node)
        if self._are_of_data(varying) and is_followed:
            self._of_data.update(filter(view.is_float32, node.outputs))
        return need

    def _may_overflow(self, node: OpNode) -> bool:
        """Whether a low precision makes what a node looks for: infinity, or NaN of two infinities."""
        if node.op.label == "IsNaN":
            producer = self._view.producer.get(self._view.origin(node.inputs[0], MOVES_AND_SIGNS))
            if (
                producer is None
                or producer.op not in _GIVE_NAN
                or any(map(self._values.fits, producer.inputs))
            ):
                return False
        return self._values.is_narrow

    def _is_beside_quotient(self, node: OpNode, varying: list[str]) -> bool:
        """Whether values are subtracted that are divided by each other, too: ``(a - b) / log(a / b)``."""
        if node.op.label != "Sub" or len(varying) != 2:
            return False
        readers = (self._view.node[use.node] for use in self._view.consumers[varying[0]])
        return any(one.op.label == "Div" and {*one.inputs} == {*varying} for one in readers)

    def _tells_apart_far_from_zero(self, node: OpNode, varying: list[str]) -> bool:
        """Whether values that lie close together, far from zero, are centered or told apart: ``x + 500``."""
        is_difference = self._signs.is_difference(node)
        if not is_difference and node.op not in _TELLS_APART:
            return False
        if not is_difference and any(self._forms.scale_of(t, self._inputs) > _STEEP for t in varying):
            return True
        ranges = self._values.of(varying)
        are_far = any(map(self._forms.is_far_from_zero, varying))
        if are_far or any(
            r.magnitude > _ROUNDINGS * (r.expected_highest - r.expected_lowest) for r in ranges
        ):
            return len(varying) > 1 or not is_difference or self._leaves_little(node)
        return False

    def _leaves_little(self, node: OpNode) -> bool:
        result, *terms = self._values.of((node.outputs[0], *node.inputs))
        return _ROUNDINGS * result.magnitude < max(r.magnitude for r in terms)

    def _is_standardized(self, node: OpNode, data: str) -> bool:
        """Whether a large constant is taken off data: 20, or 10 where the difference is divided by a half."""
        constants = [self._values.range(t) for t in node.inputs if t != data]
        offset, size = self._offsets.get(data, 0.0), max((r.magnitude for r in constants), default=0.0)
        if node.op in SUMS_OF_FEW:
            offset = max(offset, size if size > 1.0 else 0.0)  # 1 - mask, times 10,000
        elif size:
            offset = offset / size if node.op.label == "Div" else offset * size
        self._offsets[node.outputs[0]] = offset
        return offset > _ROUNDINGS

    def _is_statistic(self, node: OpNode, varying: list[str]) -> bool:
        is_function = node.op in _OF_STATISTICS and self._statistics.issuperset(varying)
        return is_function or node.op in _STATISTICS or is_sum(node, self._values)

    def _is_of_statistics(self, node: OpNode, varying: list[str]) -> bool:
        if node.op not in SUMS_OF_FEW or self._statistics.isdisjoint(varying):
            return False
        if not all(t in self._statistics or t in self._raw for t in varying):
            return False
        constants = [self._values.range(t) for t in node.inputs if t not in varying]
        if self._signs.is_difference(node):
            return not any(r.lowest == r.highest == 0.0 for r in constants)
        return self._signs_of(node, varying) >= _BOTH

    def _signs_of(self, node: OpNode, varying: list[str]) -> frozenset[int]:
        """The signs of the terms that a statistic sums up, as far as they are proved."""
        if self._has_one_sign(node):
            return frozenset({1 if self._values.range(node.outputs[0]).lowest >= 0.0 else -1})
        if node.op not in _KEEPING_SIGNS:
            return frozenset()
        return frozenset().union(*(self._of_terms.get(t, frozenset()) for t in varying))

    def _has_one_sign(self, node: OpNode) -> bool:
        return have_one_sign((self._values.range(node.outputs[0]),))

    def _normalizes_weight(self, node: OpNode) -> bool:
        """Whether a trained weight is divided by a sum of its own: no scaling of either changes the result.

        All of a step's gradients of it have been summed, and what their common part leaves is small.
        """
        if node.op.label not in ("Div", "Softmax"):
            return False
        sources, divisor = self.gradients.sources(node.inputs[0]), node.inputs[-1]
        is_sum = node.op.label == "Softmax" or self._view.origin(divisor, MOVES) in self._statistics
        return bool(sources) and is_sum and self.gradients.sources(divisor) == sources <= self._weights

    def _is_slope_of_loss(self, node: OpNode, varying: list[str]) -> bool:
        """Whether a node of the backward pass takes a difference of what the loss is computed of alone."""
        is_followed = not varying or self._functions.are_placed(node)
        if node.name in self._forward or not is_followed or not self._of_loss.issuperset(varying):
            return False
        self._of_loss.update(filter(self._view.is_float32, node.outputs))
        return self._signs.is_difference(node) and not self._of_data.issuperset(varying)

    def _is_of_data(self, node: OpNode, varying: list[str]) -> bool:
        """Whether a node subtracts, bends or compares only data that nothing has rounded yet."""
        view = self._view
        if node.op in _ORDERS or self._specs.spec(node.op).family is Family.NORMALIZATION:
            # A gradient comes before the data that was normalized.
            is_backward = node.op.op_type.endswith("Grad")
            return not self._of_data.isdisjoint(node.inputs[1:2] if is_backward else node.inputs[:1])
        if node.op in SCALES and len(varying) == 2 and self._are_of_data(varying):
            producers = (view.producer.get(view.origin(t, MOVES)) for t in varying)
            is_far = any(one is not None and one.op in SUMS_OF_FEW for one in producers)
            if is_far or not self._statistics.isdisjoint(varying):
                return True  # (x - mean) * rstd, whether the batch or an input tells the mean; x * (1 / norm)
        if node.op.label == "Div" and node.inputs[1] in varying:
            return not self._raw.isdisjoint(varying)
        if self._signs.is_difference(node) and len(varying) == 2 and self._are_of_data(varying):
            self._deviations.add(node.outputs[0])
            return True
        if not varying or not self._raw.issuperset(varying):
            return False
        if node.op in SUMS_OF_FEW and len(varying) > 1:
            return True
        if node.op in SUMS_OF_FEW or node.op in SCALES:
            return self._is_standardized(node, varying[0])
        if node.op in MOVES_AND_SIGNS:
            self._offsets.update((t, self._offsets.get(varying[0], 0.0)) for t in node.outputs if t)
        if node.op.label == "Cast":
            return view.tensors[node.outputs[0]].dtype in _INTEGERS
        return self._specs.spec(node.op).asks_accuracy is not None

    def _are_of_data(self, tensors: list[str]) -> bool:
        """Whether tensors are data, or computed of data and of counts and masks alone."""
        others = [t for t in tensors if t not in self._of_data]
        return len(others) < len(tensors) and all(self._values.range(t).from_integers for t in others)

    def _is_of_deviations(self, node: OpNode, varying: list[str]) -> bool:
        """Whether a node multiplies gradients by deviations of data, sums the products or scales the sum.

        The gradient of a scale that standardized data is multiplied by is in the units of the data until it
        is multiplied by 1 / deviation.
        """
        if node.name in self._forward or self._deviations.isdisjoint(varying):
            return False
        is_summed = is_sum(node, self._values)
        if is_summed or (node.op in SCALED and not self._to_sums.isdisjoint(node.outputs)):
            self._deviations.update(node.outputs)
        return is_summed or node.op in SCALED


def _beside_loss(values: GraphValues) -> set[str]:
    """Tensors that the loss is computed of, back to the last products, normalizations and gates."""
    view, specs, tensors = values.view, current(), set[str]()
    forward = values.scaling.forward
    ends = _gates(values) | {
        node.name for node in values.forward_nodes if specs.spec(node.op).family in PRODUCTS_AND_NORMS
    }
    for node in reversed(list(values.forward_nodes)) if forward else ():
        readers = (use.node for t in node.outputs if t for use in view.consumers.get(t, ()))
        leads_to_loss = forward.isdisjoint(readers) or not tensors.isdisjoint(node.outputs)
        if leads_to_loss and node.name not in ends:
            tensors.update(filter(view.is_float32, (*node.inputs, *node.outputs)))
    return tensors


def _gates(values: GraphValues) -> set[str]:
    """Nodes that multiply what comes from different last products: in a cell of an LSTM, ``o * tanh(c)``."""
    specs, gates = current(), set[str]()
    sources: dict[str, str] = {}  # by tensor: the last product that it comes from, or _SEVERAL
    for node in values.forward_nodes:
        origins = {t: sources[t] for t in node.inputs if t in sources}
        several = len(set(origins.values())) > 1
        if node.op.label == "Mul" and len(origins) > 1 and (several or _SEVERAL in origins.values()):
            gates.add(node.name)
        source = _SEVERAL if several else next(iter(origins.values()), "")
        if specs.spec(node.op).family in PRODUCTS_AND_NORMS:
            source = node.name
        sources.update((t, source) for t in node.outputs if t and source)
    return gates


def _of_sums(node: OpNode, values: GraphValues, sums: Accumulated) -> Need | None:
    """Accuracy that a difference of sums asks of them: they are as much larger than it as they have terms."""
    terms = max((sums.terms.get(t, 1.0) for t in node.inputs if t in sums.of_one_sign), default=1.0)
    if terms <= 1.0 or any(map(values.is_constant, node.inputs)):
        return None
    a, b = values.of(node.inputs[:2])
    are_alike = (a.lowest >= 0.0 and b.lowest >= 0.0) or (a.highest <= 0.0 and b.highest <= 0.0)
    are_unlike = (a.lowest >= 0.0 and b.highest <= 0.0) or (a.highest <= 0.0 and b.lowest >= 0.0)
    if are_alike if node.op.label == "Add" else are_unlike:
        return None
    return Need(absolute=_ROUNDINGS * 2.0 ** -(values.low.fraction_bits + 1) / terms)
