"""Whether a training graph scales its loss, and where it divides the scale out of its gradients."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.safety import loss_output, weight_update

_BOUNDARY = OpKey("com.microsoft", "YieldOp")
_QUOTIENTS = frozenset({OpKey("", "Div"), OpKey("", "Reciprocal")})


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """How large the gradients of a graph are held.

    Parameters
    ----------
    forward
        Nodes that the loss is computed by.
    scale
        The scalar input that multiplies the loss, or what a YieldOp brings in; None without either.
    scalars
        Tensors of one element whose size no constant tells, each with the input it comes from.
    unscaled
        Nodes behind the division by the scale.
    """

    forward: frozenset[str]
    scale: str | None
    scalars: Mapping[str, str]
    unscaled: frozenset[str]


def loss_scaling(view: GraphView) -> LossScaling:
    """Find the loss scale of a graph, and what is computed with it."""
    forward = forward_of(view, loss_output(view))
    scale = loss_scale(view, forward, weight_update(view))
    scalars = scalars_of_inputs(view)
    unscaled = unscaled_nodes(view, scale, forward, scalars)
    return LossScaling(forward=forward, scale=scale, scalars=scalars, unscaled=unscaled)


def low_gradients(view: GraphView, scaling: LossScaling, low_nodes: Collection[str]) -> tuple[str, ...]:
    """Low nodes of the backward pass of a graph without a loss scale, in the order of the graph."""
    if scaling.scale is not None or not scaling.forward:
        return ()
    return tuple(n.name for n in view.nodes if n.name in low_nodes and n.name not in scaling.forward)


def forward_of(view: GraphView, loss: str | None) -> frozenset[str]:
    """Nodes that the loss is computed by; in a graph of ORTModule, what is handed to the framework."""
    starts = [t for node in view.nodes if node.op == _BOUNDARY for t in node.inputs]
    pending = starts or ([] if loss is None else [loss])
    found: set[str] = set()
    while pending:
        node = view.producer.get(pending.pop())
        if node is None or node.name in found:
            continue
        found.add(node.name)
        pending.extend(t for t in (*node.inputs, *node.captures) if t)
    return frozenset(found)


def loss_scale(view: GraphView, forward: frozenset[str], update: frozenset[str]) -> str | None:
    """Find what scales the gradients: a scalar input, or the framework that hands them in.

    Parameters
    ----------
    view
        The graph.
    forward
        Nodes that the loss is computed by.
    update
        Nodes of the weight update.

    Returns
    -------
    str or None
        Name of the scalar input that multiplies the loss alone, or of the tensor that a YieldOp brings
        in; None where gradients have the size that the loss gives them.
    """
    for node in view.nodes:
        if node.op == _BOUNDARY and any(node.outputs):
            return next(t for t in node.outputs if t)
    for name in view.inputs:
        info = view.tensors[name]
        is_scalar = view.is_float32(name) and info.kind is TensorKind.INPUT and info.elements == 1
        if is_scalar and _scales_gradients(name, view, forward, update):
            return name
    return None


def _scales_gradients(name: str, view: GraphView, forward: frozenset[str], update: frozenset[str]) -> bool:
    """Whether a scalar meets tensors behind the loss only, outside the update."""
    pending, seen, meets = [name], {name}, False
    while pending:
        for use in view.consumers.get(pending.pop(), ()):
            node = view.node[use.node]
            if node.name in update:
                continue
            if _makes_one_element(node, view):
                fresh = [t for t in node.outputs if t and t not in seen]
                seen.update(fresh)
                pending.extend(fresh)
            elif node.name in forward:
                return False
            else:
                meets = True
    return meets


def _makes_one_element(node: OpNode, view: GraphView) -> bool:
    return all(view.tensors[t].elements == 1 for t in node.outputs if t)


def scalars_of_inputs(view: GraphView) -> Mapping[str, str]:
    """Tensors of one element that are computed from scalar inputs and constants alone.

    A learning rate, a loss scale, its reciprocal: the graph does not tell how large they are.

    Returns
    -------
    mapping
        The input, by tensor; the inputs themselves included.
    """
    found = {name: name for name in view.inputs if view.is_float32(name) and view.tensors[name].elements == 1}
    for node in view.nodes:
        known = [found.get(t, "") for t in node.inputs if t]
        if not any(known) or not _makes_one_element(node, view) or not _is_float(node, view):
            continue
        others = [t for t in node.inputs if t and t not in found]
        if all(view.tensors[t].kind is TensorKind.CONSTANT for t in others):
            found.update(dict.fromkeys((t for t in node.outputs if t), next(filter(None, known))))
    return found


def unscaled_nodes(
    view: GraphView, scale: str | None, forward: frozenset[str], scalars: Mapping[str, str]
) -> frozenset[str]:
    """Nodes behind the division by the loss scale: gradients have their own, small size again.

    Parameters
    ----------
    view
        The graph.
    scale
        What scales the loss.
    forward
        Nodes that the loss is computed by.
    scalars
        Scalars by tensor (:func:`scalars_of_inputs`).
    """
    if scale is None or scale not in scalars:
        return frozenset()
    inverses: set[str] = set()
    unscaled: set[str] = set()
    found: set[str] = set()
    for node in view.nodes:
        if node.name in forward:
            continue
        reads_inverse = any(t in inverses for t in node.inputs)
        divides = node.op in _QUOTIENTS and scalars.get(node.inputs[-1]) == scale
        if node.outputs and scalars.get(node.outputs[0]) == scale:
            if reads_inverse or divides:
                inverses.update(t for t in node.outputs if t)
            continue
        if reads_inverse or divides or any(t in unscaled for t in node.inputs):
            found.add(node.name)
            unscaled.update(t for t in node.outputs if t and view.is_float32(t))
    return frozenset(found)


def _is_float(node: OpNode, view: GraphView) -> bool:
    return bool(node.outputs) and view.is_float32(node.outputs[0])
