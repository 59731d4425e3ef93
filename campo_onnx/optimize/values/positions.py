"""Positions, counts and angles: rounded, they give a wrong answer, not one that is slightly off."""

import math
from collections.abc import Iterable, Mapping

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import ValueRange, from_integers
from campo_onnx.ops.values.rule import of_type
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import CONTRACTIONS, MOVES, MOVES_AND_SIGNS, SUMS_OF_FEW
from campo_onnx.optimize.values.walk import Labels

_NEED_EXACT = having(Trait.EXACT)
_DECIDING = _NEED_EXACT - op_keys("CumSum OneHot TopK")
_ANGLES = op_keys("Cos Sin Tan")
_TO_ANGLES = MOVES_AND_SIGNS | op_keys("Add Concat Div Gather Mul Slice Sub Tile")
_SCALES = MOVES | op_keys("Add Div Mul Sub")
_COUNTS_ON = _SCALES | op_keys("CumSum")
_KEEPING_OFFSETS = MOVES | op_keys("Add Concat Max Min Mul ReduceMax Slice Where")
_FEW_LEVELS = 4.0
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_SMALL_COUNT = 100.0
_FP16_BITS = 10
_VISIBLE = 0.03
"""An error of this size in what is added before a softmax shows."""

_COARSE = 0.5
"""Something of size 1 is lost where neighbouring values of the low precision are further apart than this."""

_FEW_TURNS = 8.0
"""Angles up to here are as good as their rounding."""


def largest_exact(low: Precision) -> int:
    """Up to here every integer is exact.

    Examples
    --------
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
            or _is_to_integer(node, view)
            or not needed.isdisjoint(node.outputs)
        ):
            needed.update(counts)
            if is_difference:
                needed.update(filter(None, node.outputs))
    return frozenset(needed)


def _is_to_integer(node: OpNode, view: GraphView) -> bool:
    return node.op.label == "Cast" and view.tensors[node.outputs[0]].dtype not in _FLOATS


def decided_inputs(values: GraphValues) -> Mapping[str, str]:
    """Find nodes that decide by an input as it comes in, and those that move and scale it before.

    It may hold positions, lengths or labels as floats.

    Returns
    -------
    mapping
        The tensor that is decided by, by node name.
    """
    view, raw = values.view, _raw_inputs(values)
    nodes, tensors = Labels(), Labels()
    for node in reversed(view.nodes if raw else ()):
        inputs = [t for t in node.inputs if t in raw]
        if node.op in _DECIDING or _is_to_integer(node, view):
            tensors.update(zip(inputs, inputs, strict=True))
            decided = next(iter(inputs), "")
        elif decided := tensors.first(node.outputs):
            tensors.mark(inputs, decided)
        if decided:
            nodes[node.name] = decided
    return nodes


def _raw_inputs(values: GraphValues) -> frozenset[str]:
    """Inputs that are not trained, moved and scaled: they may be positions, lengths or labels as floats."""
    raw = {t for t in values.view.data_inputs if not values.range(t).is_bounded}
    for node in values.view.nodes if raw else ():
        if node.op in _SCALES and _are_in(node.inputs, raw, values.view):
            raw.update(filter(None, node.outputs))
    return frozenset(raw)


def _are_in(tensors: Iterable[str], some: set[str], view: GraphView) -> bool:
    """Whether all tensors are among some, but for constants."""
    return all(t in some or view.is_constant(t) for t in tensors if t)


def _offsets(values: GraphValues) -> frozenset[str]:
    """Positions that something is added to, and the sums, until they are subtracted from each other."""
    view, low = values.view, values.low
    offsets: set[str] = set()
    counts = {t for t in view.inputs if values.ranges.get(t, of_type(view.tensors[t].dtype)).is_integer}
    for node in view.nodes:
        if node.op in _COUNTS_ON and _are_in(node.inputs, counts, view):
            counts.update(filter(None, node.outputs))
        if node.op in _KEEPING_OFFSETS and not offsets.isdisjoint(node.inputs):
            offsets.update(filter(None, node.outputs))
        if node.op not in SUMS_OF_FEW or not view.is_float32(node.outputs[0]):
            continue
        ranges = values.of(node.inputs)
        terms = [
            t
            for t, r in zip(node.inputs, ranges, strict=False)
            if _is_position(r, low)
            or (t in counts and r.varies and not r.is_bounded and r.step <= 1.0)
            or r.rounding * 2.0 ** (_FP16_BITS - low.fraction_bits) > _VISIBLE
        ]
        if terms and any(r.varies for r in ranges) and not from_integers(ranges):
            offsets.update((*terms, *node.outputs))
    return frozenset(offsets)


def _is_position(r: ValueRange, low: Precision) -> bool:
    """Whether integers are positions, far enough from zero to swallow what is added, and no mask.

    A mask of 0 and -10,000 takes steps of 10,000.
    """
    if not r.from_integers or r.lowest == r.highest:
        return False
    return r.magnitude * 2.0**-low.fraction_bits > _COARSE and r.magnitude > _FEW_LEVELS * r.step


def _are_arrays(node: OpNode, values: GraphValues) -> bool:
    """Whether a sum is one of positions: neither term is a small constant, as in 1 - mask."""
    constants = filter(values.view.is_constant, node.inputs)
    return all(values.range(t).magnitude > _SMALL_COUNT for t in constants)


def angles(values: GraphValues) -> Mapping[str, str]:
    """Find sines and cosines of what may be many turns, and what computes the angle.

    At 100 an angle in FP16 is off by up to 0.03, at 3,000 by 1: nothing is left of position times frequency.

    Returns
    -------
    mapping
        The angle, by node name.
    """
    view = values.view
    nodes, tensors = Labels(), Labels()
    for node in reversed(view.nodes):
        if node.op in _ANGLES:
            angle = node.inputs[0]
            if view.is_float32(angle) and not values.range(angle).bound <= _FEW_TURNS:
                nodes[node.name] = tensors[angle] = angle
        elif (angle := tensors.first(node.outputs)) and (
            node.op in _TO_ANGLES
            or _is_outer(node, view)
            or not any(r.varies for r in values.of(node.outputs))
        ):
            nodes[node.name] = angle
            tensors.mark(filter(view.is_float32, node.inputs), angle)
    return nodes


def _is_outer(node: OpNode, view: GraphView) -> bool:
    """Whether a product of matrices sums nothing: positions times frequencies."""
    if node.op not in CONTRACTIONS:
        return False
    after = view.tensors[node.outputs[0]].elements
    sizes = [view.tensors[t].elements or 0 for t in node.inputs[:2]]
    return bool(after) and math.prod(sizes) == after
