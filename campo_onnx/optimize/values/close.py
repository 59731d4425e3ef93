"""Differences of what may be close: how exactly their terms are needed, which the terms alone do not tell."""

from collections.abc import Mapping

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.need import EXACT, Need, Needs
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.accumulated import Accumulated
from campo_onnx.optimize.values.sum_ops import MOVES

_ROUNDS = frozenset({OpKey("", "Ceil"), OpKey("", "Floor"), OpKey("", "Round")})
_PARTS = frozenset({OpKey("", "Slice"), OpKey("", "Split")})
_NARROW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_INTEGERS = frozenset(
    {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8}
)
_LOGARITHMS = frozenset({OpKey("", "LogSoftmax")})
_CHOSEN = frozenset({OpKey("", "Gather"), OpKey("", "GatherElements"), OpKey("", "GatherND")})
_ROUNDINGS = 16.0


def close_differences(
    view: GraphView, ranges: Mapping[str, ValueRange], sums: Accumulated, low: Precision
) -> Mapping[str, Needs]:
    """Find differences of a value and its rounding, of parts of one tensor, and of long sums of one sign.

    ``x - float(half(x))`` is what rounding takes from x: where x is rounded before, nothing is left. A sum of
    500 log-probabilities is off by 0.25 in FP16, and its difference from another model's is of size 1.

    Returns
    -------
    mapping
        What is asked of the inputs, by name of the node.
    """
    tolerance = _ROUNDINGS * 2.0 ** -(low.fraction_bits + 1)
    found: dict[str, Needs] = {}
    for node in view.nodes:
        if node.op not in (OpKey("", "Sub"), OpKey("", "Add")) or not view.is_float32(node.outputs[0]):
            continue
        need = (
            _of_remainder(node, view)
            or _of_parts(node, view)
            or _of_logarithms(node, view)
            or _of_sums(node, view, ranges, sums, tolerance)
        )
        if need is not None:
            found[node.name] = {0: need, 1: need}
    return found


def _of_remainder(node: OpNode, view: GraphView) -> Need | None:
    """What a remainder of rounding asks of what is rounded."""
    (a, a_step), (b, b_step) = (_origin(t, view) for t in node.inputs[:2])
    if a != b or a_step is b_step is None:
        return None
    return Need(is_place="Cast" in (a_step, b_step))


def _of_logarithms(node: OpNode, view: GraphView) -> Need | None:
    """What the logarithm of a ratio of probabilities asks: of two models that say about the same."""
    if node.op != OpKey("", "Sub"):
        return None
    for tensor in node.inputs:
        producer = view.producer.get(tensor)
        while producer is not None and (producer.op in MOVES or producer.op in _CHOSEN):
            producer = view.producer.get(producer.inputs[0])
        if producer is not None and producer.op in _LOGARITHMS:
            return EXACT
    return None


def _of_parts(node: OpNode, view: GraphView) -> Need | None:
    """What a difference of two parts of one tensor asks: an extent, a step between neighbours."""
    if node.op != OpKey("", "Sub") or node.inputs[0] == node.inputs[1]:
        return None
    parts = [view.producer.get(t) for t in node.inputs]
    sources = [part.inputs[0] for part in parts if part is not None and part.op in _PARTS]
    return EXACT if len(sources) == 2 and sources[0] == sources[1] else None


def _origin(tensor: str, view: GraphView) -> tuple[str, str | None]:
    """The tensor that rounding, moving and changing signs lead back to, and the kind of rounding."""
    rounding: str | None = None
    producer = view.producer.get(tensor)
    while producer is not None and (
        producer.op in MOVES or producer.op in _ROUNDS or producer.op == OpKey("", "Neg")
    ):
        dtype = view.tensors[producer.outputs[0]].dtype
        if producer.op in _ROUNDS or dtype in _INTEGERS:
            rounding = rounding or "Floor"
        elif producer.op == OpKey("", "Cast") and dtype in _NARROW:
            rounding = "Cast"
        tensor = producer.inputs[0]
        producer = view.producer.get(tensor)
    return tensor, rounding


def _of_sums(
    node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange], sums: Accumulated, tolerance: float
) -> Need | None:
    """What a difference of sums asks of them: they are as much larger than it as they have terms."""
    terms = max((sums.terms.get(t, 1.0) for t in node.inputs if t in sums.of_one_sign), default=1.0)
    if terms <= 1.0 or any(view.tensors[t].kind is TensorKind.CONSTANT for t in node.inputs):
        return None
    a, b = (ranges.get(t, UNKNOWN) for t in node.inputs[:2])
    are_alike = (a.lowest >= 0.0 and b.lowest >= 0.0) or (a.highest <= 0.0 and b.highest <= 0.0)
    are_unlike = (a.lowest >= 0.0 and b.highest <= 0.0) or (a.highest <= 0.0 and b.lowest >= 0.0)
    if are_alike if node.op == OpKey("", "Add") else are_unlike:
        return None
    return Need(absolute=tolerance / terms)
