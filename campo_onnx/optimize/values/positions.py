"""Positions, counts and angles: rounded, they give a wrong answer, not one that is slightly off."""

import math
from collections.abc import Mapping

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import UNKNOWN, ValueRange, from_integers
from campo_onnx.ops.values.rule import of_type
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.sum_ops import CONTRACTIONS, MOVES, SIGNS

_NEED_EXACT = having(Trait.EXACT)
_DECIDING = _NEED_EXACT - {OpKey("", "CumSum"), OpKey("", "OneHot"), OpKey("", "TopK")}
_DIFFERENCES = frozenset({OpKey("", "Add"), OpKey("", "Sub"), OpKey("", "Sum")})
_ANGLES = frozenset({OpKey("", "Cos"), OpKey("", "Sin"), OpKey("", "Tan")})
_TO_ANGLES = (
    MOVES
    | SIGNS
    | {OpKey("", op) for op in ("Add", "Concat", "Div", "Gather", "Mul", "Slice", "Sub", "Tile")}
)
_SCALES = MOVES | {OpKey("", op) for op in ("Add", "Div", "Mul", "Sub")}
_KEEPING_OFFSETS = MOVES | {
    OpKey("", op) for op in ("Add", "Concat", "Max", "Min", "Mul", "ReduceMax", "Slice", "Where")
}
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


def exact_integers(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> frozenset[str]:
    """Tensors of positions and counts that `low` may round, and that something compares or converts.

    One pass backwards from what needs them exactly: comparisons, conversions to integers, roundings,
    angles, sums and differences of such tensors, positions that something is added to, outputs of the graph.
    """
    limit = largest_exact(low)
    needed = set(_offsets(view, ranges, low))

    def is_counted(tensor: str) -> bool:
        if not tensor or not view.is_float32(tensor):
            return False
        known = ranges.get(tensor, UNKNOWN)
        differs = known.varies or known.lowest != known.highest  # one constant factor is not a position
        return known.from_integers and differs and known.bound > limit * min(known.step, 1.0)

    needed.update(t for t in view.outputs if is_counted(t))
    for node in reversed(view.nodes):
        reads = [t for t in node.inputs if is_counted(t)]
        if not reads:
            continue
        known = [ranges.get(t, UNKNOWN) for t in node.inputs if t]
        is_kept = any(t in needed for t in node.outputs)
        to_integer = node.op == OpKey("", "Cast") and view.tensors[node.outputs[0]].dtype not in _FLOATS
        is_difference = node.op in _DIFFERENCES and from_integers(known) and _are_arrays(node, view, ranges)
        if is_kept or to_integer or node.op in _NEED_EXACT or is_difference:
            needed.update(reads)
            if is_difference:
                needed.update(t for t in node.outputs if t)
    return frozenset(needed)


def decided_inputs(view: GraphView, ranges: Mapping[str, ValueRange]) -> Mapping[str, str]:
    """Find nodes that decide by an input as it comes in, and those that move and scale it before.

    It may hold positions, lengths or labels as floats.

    Returns
    -------
    mapping
        The tensor that is decided by, by node name.
    """
    given = _as_given(view, ranges)
    found: dict[str, str] = {}
    asked: dict[str, str] = {}
    for node in reversed(view.nodes if given else ()):
        is_cast = node.op == OpKey("", "Cast") and view.tensors[node.outputs[0]].dtype not in _FLOATS
        if is_cast or node.op in _DECIDING:
            asked.update((t, t) for t in node.inputs if t in given)
            met = next((t for t in node.inputs if t in given), "")
        else:
            met = next((asked[t] for t in node.outputs if t in asked), "")
            asked.update((t, met) for t in node.inputs if met and t in given)
        if met:
            found[node.name] = met
    return found


def _as_given(view: GraphView, ranges: Mapping[str, ValueRange]) -> frozenset[str]:
    """Inputs that are not trained, moved and scaled: they may be positions, lengths or labels as floats."""
    trained = {view.shape(t) for t in view.outputs if view.is_float32(t)}
    found = {
        t
        for t in view.inputs
        if view.is_float32(t)
        and view.tensors[t].elements != 1
        and view.shape(t) not in trained
        and not ranges.get(t, UNKNOWN).is_bounded
    }
    for node in view.nodes if found else ():
        if node.op in _SCALES and all(t in found or _is_constant(t, view) for t in node.inputs if t):
            found.update(t for t in node.outputs if t)
    return frozenset(found)


def _offsets(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> frozenset[str]:
    """Positions that something is added to, and the sums, until they are subtracted from each other."""
    found: set[str] = set()
    counts = {t for t in view.inputs if ranges.get(t, of_type(view.tensors[t].dtype)).is_integer}
    for node in view.nodes:
        counts_on = node.op in _SCALES or node.op == OpKey("", "CumSum")
        if counts_on and all(t in counts or _is_constant(t, view) for t in node.inputs if t):
            counts.update(t for t in node.outputs if t)
        if any(t in found for t in node.inputs) and node.op in _KEEPING_OFFSETS:
            found.update(t for t in node.outputs if t)
        if node.op not in _DIFFERENCES or not view.is_float32(node.outputs[0]):
            continue
        known = [ranges.get(t, UNKNOWN) for t in node.inputs if t]
        offsets = [
            t
            for t, r in zip(node.inputs, known, strict=False)
            if _is_position(r, low)
            or (t in counts and r.varies and not r.is_bounded and r.step <= 1.0)
            or r.rounding * 2.0 ** (_FP16_BITS - low.fraction_bits) > _VISIBLE
        ]
        if offsets and any(r.varies for r in known) and not from_integers(known):
            found.update((*offsets, *node.outputs))
    return frozenset(found)


def _is_position(known: ValueRange, low: Precision) -> bool:
    """Whether integers are positions, far enough from zero to swallow what is added, and no mask.

    A mask of 0 and -10,000 takes steps of 10,000.
    """
    if not known.from_integers or known.lowest == known.highest:
        return False
    is_far = known.magnitude * 2.0**-low.fraction_bits > _COARSE
    return is_far and known.magnitude > _FEW_LEVELS * known.step


def _are_arrays(node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange]) -> bool:
    """Whether a sum is one of positions: neither term is a small constant, as in 1 - mask."""
    constants = [t for t in node.inputs if t and _is_constant(t, view)]
    return all(ranges.get(t, UNKNOWN).magnitude > _SMALL_COUNT for t in constants)


def _is_constant(tensor: str, view: GraphView) -> bool:
    return view.tensors[tensor].kind is TensorKind.CONSTANT


def angles(view: GraphView, ranges: Mapping[str, ValueRange]) -> Mapping[str, str]:
    """Find sines and cosines of what may be many turns, and what computes the angle.

    At 100 an angle in FP16 is off by up to 0.03, at 3,000 by 1: nothing is left of position times frequency.

    Returns
    -------
    mapping
        The angle, by node name.
    """
    found: dict[str, str] = {}
    asked: dict[str, str] = {}
    for node in reversed(view.nodes):
        if node.op in _ANGLES:
            angle = node.inputs[0]
            if view.is_float32(angle) and not ranges.get(angle, UNKNOWN).bound <= _FEW_TURNS:
                found[node.name] = asked[angle] = angle
            continue
        met = next((asked[t] for t in node.outputs if t in asked), "")
        if met and (node.op in _TO_ANGLES or _is_outer(node, view) or not _varies(node, ranges)):
            found[node.name] = met
            asked.update((t, met) for t in node.inputs if t and view.is_float32(t))
    return found


def _is_outer(node: OpNode, view: GraphView) -> bool:
    """Whether a product of matrices sums nothing: positions times frequencies."""
    if node.op not in CONTRACTIONS:
        return False
    after = view.tensors[node.outputs[0]].elements
    sizes = [view.tensors[t].elements or 0 for t in node.inputs[:2]]
    return bool(after) and math.prod(sizes) == after


def _varies(node: OpNode, ranges: Mapping[str, ValueRange]) -> bool:
    return any(ranges.get(t, UNKNOWN).varies for t in node.outputs if t)
