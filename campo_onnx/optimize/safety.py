"""Nodes that stay FP32 whatever the lists and the costs say: the loss and the weight update."""

from collections.abc import Mapping

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.lists.oplists import OpClass, OpLists
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.updates import earlier_versions, weight_update

BOUNDARY = op_keys("com.microsoft:YieldOp")
"""The operator by which a graph of ORTModule hands tensors to the framework and takes gradients."""


def loss(view: GraphView, lists: OpLists) -> frozenset[str]:
    """Find the nodes that compute the loss from the network's last result.

    The loss is a graph output of one FP32 element: the one called ``loss``, else the first that is
    no new version of a graph input, else the first. In a graph of ORTModule it is what YieldOp hands to
    the framework. The walk back from it stops before tensor-core operations and normalizations, and
    behind a softmax or the sum of two whole tensors that the network computes (a residual branch).
    """
    start = loss_output(view)
    if start is None:
        return frozenset()
    region: set[str] = set()
    walk, of_network = Walk([start]), _of_network(view, lists)
    for tensor in walk:
        node = view.producer.get(tensor)
        if node is None or node.name in region or _sets_its_own(node, lists):
            continue
        region.add(node.name)
        is_branch = _joins_two_tensors(node, view) and of_network.issuperset(node.inputs)
        if spec(node.op).family is not Family.SOFTMAX and not is_branch:
            walk.add(t for t in node.inputs if view.is_float32(t))
    return frozenset(region)


def _sets_its_own(node: OpNode, lists: OpLists) -> bool:
    return lists.class_of(node.op) is OpClass.ALLOW or spec(node.op).family is Family.NORMALIZATION


def _of_network(view: GraphView, lists: OpLists) -> frozenset[str]:
    """Tensors that a product or a normalization leads to; targets and what is computed of them are none."""
    tensors: set[str] = set()
    for node in view.nodes:
        if _sets_its_own(node, lists) or not tensors.isdisjoint(node.inputs):
            tensors.update(t for t in node.outputs if t)
    return frozenset(tensors)


def loss_output(view: GraphView) -> str | None:
    """Find the tensor that is the loss, or one that is handed to a framework; None where there is neither."""
    # Where there is a YieldOp, the outputs of the graph are gradients.
    crossing = [t for node in view.nodes if node.op in BOUNDARY for t in node.inputs]
    scalars = [
        t
        for t in crossing or view.outputs
        if view.is_float32(t) and view.tensors[t].elements == 1 and t in view.producer
    ]
    named = [t for t in scalars if "loss" in t.lower() and "scale" not in t.lower()]
    updated = earlier_versions(view)
    return next(iter(named or [t for t in scalars if t not in updated] or scalars), None)


def _joins_two_tensors(node: OpNode, view: GraphView) -> bool:
    if node.op.label != "Add":
        return False
    shapes = {view.shape(t) for t in node.inputs}
    kinds = {view.tensors[t].kind for t in node.inputs}
    return (
        len(shapes) == 1 and kinds == {TensorKind.ACTIVATION} and view.tensors[node.outputs[0]].elements != 1
    )


def protected(view: GraphView, lists: OpLists) -> Mapping[str, Reason]:
    """Say which nodes stay FP32 for safety."""
    reasons = dict.fromkeys(loss(view, lists), Reason.LOSS)
    reasons |= dict.fromkeys(weight_update(view), Reason.WEIGHT_UPDATE)
    return reasons
