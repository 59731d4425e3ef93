"""Positions, counts and angles: rounded, they give a wrong answer, not one that is slightly off."""

from collections.abc import Iterable, Iterator
from itertools import chain

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import ValueRange, from_integers
from campo_onnx.ops.values.rule import of_type
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES, SCALES, SHARES, SUMS_OF_FEW
from campo_onnx.optimize.values.walk import leading_to

_NEED_EXACT = having(Trait.EXACT)
ANGLES = op_keys("Cos Sin Tan")
_SCALES = MOVES | having(Trait.ADDS, Trait.SCALES, Trait.PART) | op_keys("Concat Neg")
_CHOOSES = op_keys("GatherElements GatherND TopK Where")
_COUNTS_ON = MOVES | SCALES | op_keys("Add CumSum Neg Sub")
_KEEPING_OFFSETS = MOVES | op_keys("Add Concat Max Min Mul Neg ReduceMax Slice Where")
_FEW_LEVELS = 4.0
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_SMALL_COUNT = 100.0
_FP16_BITS = 10
_VISIBLE = 0.03
"""An error of this size in what is added before a softmax shows."""

_COARSE = 0.5
"""Something of size 1 is lost where neighbouring values of the low precision are further apart than this."""

_WEIGHS = SHARES | op_keys("Exp")
_COARSE_EXPONENT, _VISIBLE_EXPONENT = 8.0, 2.0**-8
"""Largest sum with an exponent: from a magnitude of 8 on its rounding is more than 8 of the result's."""


def largest_exact(low: Precision) -> int:
    """Up to here every integer is exact.

    >>> largest_exact(Precision.FP16), largest_exact(Precision.BF16)
    (2048, 256)
    """
    return 1 << (low.fraction_bits + 1)


def exact_integers(values: GraphValues) -> frozenset[str]:
    """Find positions and counts that the low precision may round, and that something compares or converts.

    One pass backwards from what needs them exactly: comparisons, conversions to integers, roundings,
    angles, sums and differences of such tensors, positions that something is added to, outputs of the graph.
    """
    view, limit = values.view, largest_exact(values.low)
    needed = set(_offsets(values))

    def is_counted(tensor: str) -> bool:
        if not tensor or not view.is_float32(tensor):
            return False
        r = values.range(tensor)
        differs = r.varies or r.lowest != r.highest  # one constant factor is not a position
        return r.from_integers and differs and r.bound > limit * min(r.step, 1.0)

    needed.update(filter(is_counted, view.outputs))
    for node in reversed(view.nodes):
        counts = [t for t in node.inputs if is_counted(t)]
        if not counts:
            continue
        is_difference = (
            node.op in SUMS_OF_FEW and from_integers(values.of(node.inputs)) and _are_arrays(node, values)
        )
        if (
            is_difference
            or node.op in _NEED_EXACT
            or (node.op.label == "Cast" and view.tensors[node.outputs[0]].dtype not in _FLOATS)
            or not needed.isdisjoint(node.outputs)
        ):
            needed.update(counts)
            if is_difference:
                needed.update(filter(None, node.outputs))
    return frozenset(needed)


def raw_inputs(values: GraphValues) -> frozenset[str]:
    """Inputs that are not trained, moved, scaled, picked by an index and computed with each other.

    They may be positions, lengths or labels as floats, prices, coordinates.
    """
    view = values.view
    data = view.data_inputs if values.scaling.forward else filter(view.is_float32, view.inputs)
    raw = {t for t in data if not values.range(t).is_bounded}
    for node in view.nodes if raw else ():
        # Not an index of another type.
        inputs = [t for t in node.inputs if t in raw or (view.is_float32(t) and t not in values.fixed)]
        if node.op in _SCALES | _CHOOSES and not raw.isdisjoint(inputs) and _are_in(inputs, raw, values):
            raw.update(filter(None, node.outputs[:1] if node.op in _CHOOSES else node.outputs))
    return frozenset(raw)


def _are_in(tensors: Iterable[str], some: set[str], values: GraphValues) -> bool:
    """Whether all tensors are among some, but for constants."""
    return all(t in some or values.is_constant(t) for t in tensors if t)


def _offsets(values: GraphValues) -> frozenset[str]:
    """Positions that something is added to, and the sums, until they are subtracted from each other."""
    view, low = values.view, values.low
    offsets: set[str] = set()
    weighed = leading_to(view, lambda node: node.inputs[:1] if node.op in _WEIGHS else (), _KEEPING_OFFSETS)
    counts = {t for t in view.inputs if values.ranges.get(t, of_type(view.tensors[t].dtype)).is_integer}
    for node in view.nodes:
        if node.op in _COUNTS_ON and _are_in(node.inputs, counts, values):
            counts.update(filter(None, node.outputs))
        if node.op in _KEEPING_OFFSETS and not offsets.isdisjoint(node.inputs):
            offsets.update(filter(None, node.outputs))
        if node.op not in SUMS_OF_FEW or not view.is_float32(node.outputs[0]):
            continue
        ranges = values.of(node.inputs)
        coarse, visible = _COARSE, _VISIBLE * 2.0 ** (low.fraction_bits - _FP16_BITS)
        if node.outputs[0] in weighed:
            coarse, visible = _COARSE_EXPONENT * 2.0**-low.fraction_bits, _VISIBLE_EXPONENT
        terms = [
            t
            for t, r in zip(node.inputs, ranges, strict=False)
            if _is_position(r, low, coarse)
            or (t in counts and r.varies and not r.is_bounded and r.step <= 1.0)
            or r.rounding > visible
        ]
        if terms and any(r.varies for r in ranges) and not from_integers(ranges):
            offsets.update((*node.outputs, *chain.from_iterable(_moved(t, view) for t in terms)))
    return frozenset(offsets)


def _moved(tensor: str, view: GraphView) -> Iterator[str]:
    """A tensor, and what it is moved or converted from."""
    yield tensor
    while (producer := view.producer.get(tensor)) is not None and producer.op in MOVES:
        tensor = producer.inputs[0]
        yield tensor


def _is_position(r: ValueRange, low: Precision, coarse: float) -> bool:
    """Whether integers are positions, far enough from zero to swallow what is added, and no mask.

    A mask of 0 and -10,000 takes steps of 10,000.
    """
    if not r.from_integers or r.lowest == r.highest:
        return False
    return r.magnitude * 2.0**-low.fraction_bits > coarse and r.magnitude > _FEW_LEVELS * r.step


def _are_arrays(node: OpNode, values: GraphValues) -> bool:
    """Whether a sum is one of positions: neither term is a small constant, as in 1 - mask."""
    constants = filter(values.is_constant, node.inputs)
    return all(values.range(t).magnitude > _SMALL_COUNT for t in constants)
