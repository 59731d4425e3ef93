"""Masks that are added before a softmax and come from outside: how large they are is not known."""

from collections.abc import Collection, Iterable, Mapping

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import current
from campo_onnx.ops.spec import Ask
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.sum_ops import MOVES

_MOVES = MOVES | {OpKey("", op) for op in ("Concat", "Gather", "Slice", "Split")}
_CHOOSES = frozenset(OpKey("", op) for op in ("Clip", "Max", "Min", "Where"))
_SUMS = frozenset(OpKey("", op) for op in ("Add", "Sub", "Sum"))
_KEEPING = _MOVES | _SUMS | {OpKey("", op) for op in ("Clip", "Div", "Max", "Min", "Mul", "Where")}
_SOFTMAX = frozenset(OpKey("", op) for op in ("Exp", "LogSoftmax", "ReduceMax", "Softmax")) | {
    OpKey("com.microsoft", "BiasSoftmax")
}

"""Operators that add a mask before a softmax of their own: where they read it."""


def unknown_masks(
    view: GraphView, declared: Collection[str], ranges: Mapping[str, ValueRange], low: Precision
) -> Mapping[str, str]:
    """Find nodes between an input of unknown size that is added to something, and a softmax.

    Such an input is in all likelihood a mask, and often -3.4e38: a row that is masked throughout
    would be minus infinity everywhere in FP16, and NaN behind the softmax. An input that is
    trained (an output of the graph has its shape) is not a mask, nor is one that is computed with first, as
    in (1 - mask) * -10000: there the constants tell.

    Parameters
    ----------
    view
        The graph.
    declared
        Inputs whose range is known.
    ranges
        What is known of values; a mask that is brought between limits `low` holds is not unknown.
    low
        The low precision.

    Returns
    -------
    mapping
        The input, by name of the node.
    """
    trained = {view.shape(t) for t in view.outputs if view.is_float32(t)}
    origin = {
        name: name
        for name in view.inputs
        if view.is_float32(name)
        and name not in declared
        and (view.tensors[name].elements or 2) > 1
        and view.tensors[name].kind is TensorKind.INPUT
        and view.shape(name) not in trained
    }
    if not origin:
        return {}
    leads_on = _leading_to_softmax(view)
    masks = current().asking(Ask.MASK)
    masked: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in view.nodes:
        raw = next((origin[t] for t in node.inputs if t in origin), None)
        met = next((masked[t] for t in node.inputs if t in masked), None)
        if raw is not None and (node.op in _MOVES or _stays(node, origin, view)):
            wide = [t for t in node.outputs if t and not ranges.get(t, UNKNOWN).bound <= low.largest]
            origin.update(dict.fromkeys(wide, raw))
        elif raw is not None and node.op in _SUMS and _adds_activations(node.inputs, origin, view):
            met = met or raw
            if any(t in leads_on for t in node.outputs):
                _add_moves(node.inputs, origin, view, found)
        added = [node.inputs[i] for i in masks.get(node.op, ()) if i < len(node.inputs)]
        if raw is not None and any(t in origin for t in added):
            found[node.name] = raw
            _add_moves(added, origin, view, found)
        if met is None:
            continue
        if node.op in _SOFTMAX:
            found[node.name] = met
        elif node.op in _KEEPING:
            masked.update(dict.fromkeys((t for t in node.outputs if t), met))
            if any(t in leads_on for t in node.outputs):
                found[node.name] = met
    return found


def _stays(node: OpNode, origin: Mapping[str, str], view: GraphView) -> bool:
    """Whether a node chooses between an input and constants, shifts it by one, or makes it no larger."""
    others = [t for t in node.inputs if t and t not in origin and view.is_float32(t)]
    if node.op in _CHOOSES or node.op in _SUMS:
        return all(view.tensors[t].kind is TensorKind.CONSTANT for t in others)
    return _shrinks(node, origin, view)


def _shrinks(node: OpNode, origin: Mapping[str, str], view: GraphView) -> bool:
    """Whether a node multiplies by a constant of at most 1, which says nothing of what it multiplies."""
    if node.op not in (OpKey("", "Mul"), OpKey("", "Div")):
        return False
    constants = [view.values.get(t) for t in node.inputs if t not in origin]
    if len(constants) != 1 or constants[0] is None or constants[0].size != 1:
        return False
    factor = abs(float(constants[0].reshape(-1)[0]))
    if node.op.op_type == "Div":
        return node.inputs[0] in origin and factor >= 1.0
    return factor <= 1.0


def _add_moves(
    tensors: Iterable[str], origin: Mapping[str, str], view: GraphView, found: dict[str, str]
) -> None:
    """Add the nodes that bring an input, moved but not computed with, to some tensors."""
    pending = [t for t in tensors if t in origin]
    while pending:
        tensor = pending.pop()
        producer = view.producer.get(tensor)
        if producer is not None and producer.name not in found:
            found[producer.name] = origin[tensor]
            pending.extend(t for t in producer.inputs if t in origin)


def _adds_activations(inputs: tuple[str, ...], origin: Mapping[str, str], view: GraphView) -> bool:
    return any(t not in origin and view.tensors[t].kind is TensorKind.ACTIVATION for t in inputs)


def _leading_to_softmax(view: GraphView) -> frozenset[str]:
    found: set[str] = set()
    masks = current().asking(Ask.MASK)
    for node in reversed(view.nodes):
        if (
            node.op in _SOFTMAX
            or node.op in masks
            or (node.op in _KEEPING and any(t in found for t in node.outputs))
        ):
            found.update(t for t in node.inputs if t)
    return frozenset(found)
