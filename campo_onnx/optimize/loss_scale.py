"""Whether a training graph scales its loss, and what it computes before the loss and after."""

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey

_BOUNDARY = OpKey("com.microsoft", "YieldOp")


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
