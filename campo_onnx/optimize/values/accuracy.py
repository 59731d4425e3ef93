"""Nodes that stay FP32 because their values are needed more exactly than a low precision holds them.

Beside what a value can be (``ranges.py``, forward), one pass backward: how exactly its readers need it. The
relative error that is tolerated of a result is sixteen roundings of the low precision, 0.8 % in FP16 and
6 % in BF16. ``ops/values/asks.py`` says what operators ask for, ``passes.py`` there what they pass on.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.registry import current
from campo_onnx.ops.spec import PRODUCTS_AND_NORMS, OpSpec
from campo_onnx.ops.values.need import NOTHING, Need, Needs
from campo_onnx.ops.values.range import ValueRange
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.positions import ANGLES, largest_exact
from campo_onnx.optimize.values.sum_ops import MOVES, MOVES_AND_PARTS, SCALES, SUMS_OF_FEW

_ROUNDINGS = 16.0
"""The relative error of a result that is tolerated, in roundings of the low precision."""

_COUNTED = frozenset({TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64})
_MOST_NEEDS = 4


@dataclass(frozen=True, slots=True)
class _Request:
    need: Need
    reader: str


def needed_exactly(values: GraphValues, more: Mapping[str, Needs]) -> Mapping[str, Verdict]:
    """Find the nodes that write what is needed more exactly than rounded, or would read it rounded.

    One pass from outputs to inputs, which visits every node once.

    The reason is the first such tensor. `more` is what nodes ask of their inputs for what they do
    together with others, by node name.
    """
    search = _Backward(values)
    for node in reversed(values.view.nodes):
        search.visit(node, more.get(node.name, NOTHING))
    return search.verdicts


class _Backward:
    """The pass: what has been asked of each tensor by the nodes behind."""

    def __init__(self, values: GraphValues) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self._values, self._specs = values, current()
        self._asked: dict[str, tuple[_Request, ...]] = {}
        self._moments = _second_moments(values.view)
        self._unit = 2.0 ** -(values.low.fraction_bits + 1)

    def visit(self, node: OpNode, more: Needs) -> None:
        requests = [(t, one) for t in node.outputs if t for one in self._asked.get(t, ())]
        spec = self._specs.spec(node.op)
        if spec.asks_accuracy is None and not requests and not more:
            return
        ports = self._values.ports[node.name]
        for tensor, one in requests:
            is_kept = (
                spec.family not in PRODUCTS_AND_NORMS
                or one.need.is_place
                or self._passed(node, spec, tensor, one)
            )
            if is_kept and any(node.outputs[i] == tensor for i in ports.low_outputs):
                self._keep(node, tensor, one)
        if not self._moments.isdisjoint(node.outputs):
            requests, more = [(t, one) for t, one in requests if one.need.is_place], NOTHING
        for position, one in self._needs_of_inputs(node, spec, requests, more):
            tensor = node.inputs[position] if position < len(node.inputs) else ""
            if not tensor or not self._follows(tensor, one.need):
                continue
            if position in ports.low_inputs:
                self._keep(node, tensor, one)
            self._ask(tensor, one)

    def _needs_of_inputs(
        self, node: OpNode, spec: OpSpec, requests: list[tuple[str, _Request]], more: Needs
    ) -> Iterator[tuple[int, _Request]]:
        for position, need in more.items():
            yield position, _Request(need, node.name)
        if spec.asks_accuracy is None and (not requests or spec.passes_accuracy is None):
            return
        signature = self._values.view.signature(node.name)
        inputs = tuple(self._values.range(t) if t else None for t in node.inputs)
        if spec.asks_accuracy is not None:
            tolerance = _ROUNDINGS * self._unit
            for position, need in spec.asks_accuracy(signature, inputs, tolerance).items():
                yield position, _Request(need, node.name)
        for tensor, one in requests:
            for position, need in self._passed(node, spec, tensor, one).items():
                yield position, _Request(need, one.reader)

    def _passed(self, node: OpNode, spec: OpSpec, tensor: str, one: _Request) -> Needs:
        """Accuracy that a node asks of its inputs because of that needed of an output."""
        if spec.passes_accuracy is None:
            return NOTHING
        inputs = tuple(self._values.range(t) if t else None for t in node.inputs)
        signature, result = self._values.view.signature(node.name), self._values.range(tensor)
        return spec.passes_accuracy(signature, inputs, result, one.need)

    def _follows(self, tensor: str, need: Need) -> bool:
        """Whether a tensor may be rounded, or counts what rounding would change."""
        view = self._values.view
        return view.is_float32(tensor) or (need.is_place and view.tensors[tensor].dtype in _COUNTED)

    def _ask(self, tensor: str, new: _Request) -> None:
        earlier = self._asked.get(tensor, ())
        if any(one.need.is_within(new.need) for one in earlier):
            return
        rest = [one for one in earlier if not new.need.is_within(one.need)]
        self._asked[tensor] = (new, *rest)[:_MOST_NEEDS]

    def _keep(self, node: OpNode, tensor: str, one: _Request) -> None:
        if node.name in self.verdicts:
            return
        r = self._values.range(tensor)
        rounding, allowed = self._rounding(r), one.need.allowed(r.magnitude)
        if rounding <= allowed:
            return
        is_angle = self._values.view.node[one.reader].op in ANGLES
        self.verdicts[node.name] = (
            Reason.ANGLE.of(tensor=tensor)
            if is_angle
            else Reason.ACCURACY.of(
                tensor=tensor,
                reader=one.reader,
                low=self._values.low.value,
                allowed=allowed,
                rounding=rounding,
            )
        )

    def _rounding(self, r: ValueRange) -> float:
        """The error that the low precision makes of the largest value."""
        bits = self._values.low.fraction_bits + 1
        if r.is_integer and r.bound <= largest_exact(self._values.low):
            return 0.0
        if r.is_bounded and r.bound > self._values.low.largest:
            return r.bound  # it becomes infinite
        if r.varies or r.lowest != r.highest:
            return self._unit * r.magnitude
        fraction, exponent = math.frexp(r.lowest)
        steps = math.ldexp(fraction, bits)
        return math.ldexp(abs(steps - round(steps)), exponent - bits)


def _second_moments(view: GraphView) -> frozenset[str]:
    """Running means of squares that a step hands on: an old one, scaled, and the squares added to it.

    An update divides a gradient by the root of one. Where the terms of a gradient cancel, the quotient is
    noise, however exact the terms are: it needs a gradient no more exactly than products of matrices make it.
    """
    moments: set[str] = set()
    for output, inputs in earlier_versions(view).items():
        tensor = view.origin(output, MOVES_AND_PARTS)
        total = view.producer.get(tensor)
        if total is None or total.op not in SUMS_OF_FEW or len(total.inputs) != 2:
            continue
        terms = [_unscaled(t, view) for t in total.inputs]
        for moment, added in (terms, terms[::-1]):
            joined, square = view.producer.get(moment), view.producer.get(added)
            parts = joined.inputs if joined is not None and joined.op.label == "Concat" else (moment,)
            if square is not None and view.power(square) == 2.0 and not set(inputs).isdisjoint(parts):
                moments.add(tensor)
    return frozenset(moments)


def _unscaled(tensor: str, view: GraphView) -> str:
    """The tensor behind views and factors that are one number."""
    producer = view.producer.get(tensor)
    while producer is not None and producer.op in MOVES | SCALES:
        data = producer.inputs[:1] if producer.op in MOVES else producer.inputs
        wide = [t for t in data if view.tensors[t].elements != 1]
        if len(wide) != 1:
            break
        tensor = wide[0]
        producer = view.producer.get(tensor)
    return tensor
