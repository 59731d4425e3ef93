"""Masks that are added before a softmax and come from outside: how large they are is not known."""

from collections.abc import Iterable, Mapping

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import current
from campo_onnx.ops.spec import Ask
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES, PARTS, SCALES, SHARES, SUMS_OF_FEW
from campo_onnx.optimize.values.walk import Labels, leading_to

_MOVES = MOVES | PARTS | op_keys("Concat")
_CHOOSES = SUMS_OF_FEW | op_keys("Clip Max Min Where")
_KEEPING = _MOVES | _CHOOSES | SCALES
_SOFTMAX = SHARES | op_keys("Exp LogSoftmax ReduceMax")


def unknown_masks(values: GraphValues) -> Mapping[str, str]:
    """Find nodes between an input of unknown size that is added to something, and a softmax.

    Such an input is in all likelihood a mask, and often -3.4e38: a row that is masked throughout
    would be minus infinity everywhere in FP16, and NaN behind the softmax. An input that is
    trained (an output of the graph has its shape) is not a mask, nor is one that is computed with first, as
    in (1 - mask) * -10000: there the constants tell. One that is brought between limits that the low
    precision holds is of known size.
    """
    view = values.view
    origin = Labels({t: t for t in view.data_inputs if t not in values.declared})
    if not origin:
        return {}
    masks = current().asking(Ask.MASK)
    leads_on = leading_to(
        view,
        lambda node: node.inputs if node.op in _SOFTMAX or node.op in masks else (),
        _KEEPING,
        data=lambda node: node.inputs,
    )
    masked, nodes = Labels(), Labels()
    for node in view.nodes:
        raw, mask = origin.first(node.inputs), masked.first(node.inputs)
        is_read_on = not leads_on.isdisjoint(node.outputs)
        if raw and (node.op in _MOVES or _stays(node, origin, view)):
            origin.mark((t for t in node.outputs if not values.fits(t)), raw)
        elif raw and node.op in SUMS_OF_FEW and _adds_activations(node.inputs, origin, view):
            mask = mask or raw
            if is_read_on:
                _add_moves(node.inputs, origin, view, nodes)
        added = [node.inputs[i] for i in masks.get(node.op, ()) if i < len(node.inputs)]
        if raw and any(t in origin for t in added):
            nodes[node.name] = raw
            _add_moves(added, origin, view, nodes)
        if mask and node.op in _SOFTMAX:
            nodes[node.name] = mask
        elif mask and node.op in _KEEPING:
            masked.mark(node.outputs, mask)
            if is_read_on:
                nodes[node.name] = mask
    return nodes


def _stays(node: OpNode, origin: Mapping[str, str], view: GraphView) -> bool:
    """Whether a node chooses between an input and constants, shifts it by one, or makes it no larger."""
    if node.op in _CHOOSES:
        return all(view.is_constant(t) for t in node.inputs if t not in origin and view.is_float32(t))
    factors = [view.scalar(t) for t in node.inputs if t not in origin]
    if node.op not in SCALES or len(factors) != 1 or factors[0] is None:
        return False
    # A factor of at most 1 says nothing of what it multiplies.
    if node.op.label == "Div":
        return node.inputs[0] in origin and abs(factors[0]) >= 1.0
    return abs(factors[0]) <= 1.0


def _add_moves(
    tensors: Iterable[str], origin: Mapping[str, str], view: GraphView, nodes: dict[str, str]
) -> None:
    """Add the nodes that bring an input, moved but not computed with, to some tensors."""
    walk = Walk(t for t in tensors if t in origin)
    for tensor in walk:
        producer = view.producer.get(tensor)
        if producer is not None and producer.name not in nodes:
            nodes[producer.name] = origin[tensor]
            walk.add(t for t in producer.inputs if t in origin)


def _adds_activations(inputs: Iterable[str], origin: Mapping[str, str], view: GraphView) -> bool:
    return any(t not in origin and view.tensors[t].kind is TensorKind.ACTIVATION for t in inputs)
