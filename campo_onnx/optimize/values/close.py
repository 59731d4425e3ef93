"""Differences of close values, which need their terms more exactly than the terms alone tell."""

from collections.abc import Mapping

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.values.need import EXACT, Need, Needs
from campo_onnx.optimize.values.accumulated import Accumulated
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES

_ROUNDS = op_keys("Ceil Floor Round")
_NEGATES = op_keys("Neg")
_PARTS = op_keys("Slice Split")
_LOGARITHMS = op_keys("LogSoftmax")
_CHOSEN = MOVES | op_keys("Gather GatherElements GatherND")
_NARROW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_INTEGERS = frozenset(
    {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8}
)
_ROUNDINGS = 16.0


def close_differences(values: GraphValues, sums: Accumulated) -> Mapping[str, Needs]:
    """Find differences of a value and its rounding, of parts of one tensor, and of long sums of one sign.

    ``x - float(half(x))`` is what rounding takes from x: where x is rounded before, nothing is left. A sum of
    500 log-probabilities is off by 0.25 in FP16, and its difference from another model's is of size 1.

    Returns
    -------
    mapping
        What is asked of the inputs, by name of the node.
    """
    view = values.view
    differences: dict[str, Needs] = {}
    for node in view.nodes:
        if node.op.label not in ("Sub", "Add") or not view.is_float32(node.outputs[0]):
            continue
        need = (
            _of_remainder(node, view)
            or _of_parts(node, view)
            or _of_logarithms(node, view)
            or _of_sums(node, values, sums)
        )
        if need is not None:
            differences[node.name] = {0: need, 1: need}
    return differences


def _of_remainder(node: OpNode, view: GraphView) -> Need | None:
    """Demands of a remainder of rounding asks of what is rounded."""
    (a, a_step), (b, b_step) = (_origin(t, view) for t in node.inputs[:2])
    if a != b or a_step is b_step is None:
        return None
    return Need(is_place="Cast" in (a_step, b_step))


def _of_logarithms(node: OpNode, view: GraphView) -> Need | None:
    """What the logarithm of a ratio of probabilities asks: of two models that say about the same."""
    producers = (view.producer.get(view.origin(t, _CHOSEN)) for t in node.inputs)
    is_ratio = node.op.label == "Sub" and any(p is not None and p.op in _LOGARITHMS for p in producers)
    return EXACT if is_ratio else None


def _of_parts(node: OpNode, view: GraphView) -> Need | None:
    """What a difference of two parts of one tensor asks: an extent, a step between neighbours."""
    if node.op.label != "Sub" or node.inputs[0] == node.inputs[1]:
        return None
    parts = [view.producer.get(t) for t in node.inputs]
    sources = [part.inputs[0] for part in parts if part is not None and part.op in _PARTS]
    return EXACT if len(sources) == 2 and sources[0] == sources[1] else None


def _origin(tensor: str, view: GraphView) -> tuple[str, str | None]:
    """The tensor that rounding, moving and changing signs lead back to, and the kind of rounding."""
    rounding: str | None = None
    producer = view.producer.get(tensor)
    while producer is not None and (
        producer.op in MOVES or producer.op in _ROUNDS or producer.op in _NEGATES
    ):
        dtype = view.tensors[producer.outputs[0]].dtype
        if producer.op in _ROUNDS or dtype in _INTEGERS:
            rounding = rounding or "Floor"
        elif producer.op.label == "Cast" and dtype in _NARROW:
            rounding = "Cast"
        tensor = producer.inputs[0]
        producer = view.producer.get(tensor)
    return tensor, rounding


def _of_sums(node: OpNode, values: GraphValues, sums: Accumulated) -> Need | None:
    """What a difference of sums asks of them: they are as much larger than it as they have terms."""
    terms = max((sums.terms.get(t, 1.0) for t in node.inputs if t in sums.of_one_sign), default=1.0)
    if terms <= 1.0 or any(map(values.view.is_constant, node.inputs)):
        return None
    a, b = values.of(node.inputs[:2])
    are_alike = (a.lowest >= 0.0 and b.lowest >= 0.0) or (a.highest <= 0.0 and b.highest <= 0.0)
    are_unlike = (a.lowest >= 0.0 and b.highest <= 0.0) or (a.highest <= 0.0 and b.lowest >= 0.0)
    if are_alike if node.op.label == "Add" else are_unlike:
        return None
    return Need(absolute=_ROUNDINGS * 2.0 ** -(values.low.fraction_bits + 1) / terms)
