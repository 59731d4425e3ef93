"""Nodes that stay FP32 whatever the lists and the costs say: the loss and the weight update."""

from collections.abc import Mapping
from typing import NamedTuple

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having, spec
from campo_onnx.ops.spec import Family
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.oplists import OpClass, OpLists
from campo_onnx.optimize.plan.reason import Reason

_ELEMENTWISE = having(Trait.ADDS, Trait.SCALES, Trait.SIGN) | op_keys(
    "Cast Clip Identity Max Min Pow Reciprocal Sign Sqrt Where"
)
BOUNDARY = op_keys("com.microsoft:YieldOp")
"""The operator by which a graph of ORTModule hands tensors to the framework and takes gradients."""


@remembered
def weight_update(view: GraphView) -> frozenset[str]:
    """Find the nodes that write new parameters, optimizer state or running statistics.

    A graph output is a new version of a graph input of its shape when the input reaches it through
    elementwise nodes of that shape. The update is what computes it from there back to where the
    gradient leaves the network (a MatMul, a reduction, a Transpose). Several may be joined, updated
    at once, and cut apart again.
    """
    return frozenset[str]().union(*(region for region, _ in _updates(view).values()))


def earlier_versions(view: GraphView) -> Mapping[str, tuple[str, ...]]:
    """Find the graph outputs that are new versions of graph inputs, and the inputs in question."""
    return {output: earlier for output, (_, earlier) in _updates(view).items()}


@remembered
def _updates(view: GraphView) -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
    """Find the outputs that are new versions of inputs: the nodes that compute them, and the inputs."""
    regions: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
    joined: dict[str, _Joined] = {}
    inputs_by_shape: dict[tuple[int, ...], set[str]] = {}
    for tensor in view.inputs:
        if view.is_float32(tensor) and (shape := view.shape(tensor)) is not None:
            inputs_by_shape.setdefault(shape, set()).add(tensor)
    for output in view.outputs:
        shape = view.shape(output)
        if shape is None or not view.is_float32(output) or shape not in inputs_by_shape:
            continue
        region, reads = _joined_region(output, view, joined) or _elementwise_region(output, shape, view)
        if earlier := reads & inputs_by_shape[shape]:
            regions[output] = frozenset(region), tuple(sorted(earlier))
    return regions


class _Joined(NamedTuple):
    """Nodes that compute all parts of a Split at once."""

    region: frozenset[str]
    sources: tuple[tuple[str, ...], ...]  # of each Concat that it reads, what is joined


def _joined_region(
    output: str, view: GraphView, joined: dict[str, _Joined]
) -> tuple[set[str], set[str]] | None:
    """Walk back from one part of a Split through what is computed of all parts at once; None for another.

    `joined` remembers the walk for the other parts.
    """
    before: set[str] = set()
    tensor = _unshaped(output, view, before)
    split = view.producer.get(tensor)
    if split is None or split.op.label != "Split" or (shape := view.shape(split.inputs[0])) is None:
        return None
    if split.name not in joined:
        joined[split.name] = _of_all_parts(split, shape, view)
    region, sources = joined[split.name]
    part = split.outputs.index(tensor)
    return {*region, *before}, {of_parts[part] for of_parts in sources}


def _of_all_parts(split: OpNode, shape: tuple[int, ...], view: GraphView) -> _Joined:
    region, reads = _elementwise_region(split.inputs[0], shape, view)
    sources = []
    for tensor in sorted(reads):
        producer = view.producer.get(tensor)
        if producer is None or producer.op.label != "Concat" or len(producer.inputs) != len(split.outputs):
            continue
        of_parts = tuple(_unshaped(name, view, set()) for name in producer.inputs)
        sources.append(of_parts)
        if any(name not in view.producer for name in of_parts):
            region.add(producer.name)
    return _Joined(region=frozenset(region | {split.name}), sources=tuple(sources))


def _unshaped(tensor: str, view: GraphView, passed: set[str]) -> str:
    """Say what a tensor was before it was reshaped, and note the nodes that did it."""
    while (node := view.producer.get(tensor)) is not None and node.op.label == "Reshape":
        passed.add(node.name)
        tensor = node.inputs[0]
    return tensor


def _elementwise_region(output: str, shape: tuple[int, ...], view: GraphView) -> tuple[set[str], set[str]]:
    """Walk back from `output` through elementwise nodes of `shape` or of one element."""
    region: set[str] = set()
    reads: set[str] = set()
    walk = Walk([output])
    for tensor in walk:
        node = view.producer.get(tensor)
        if node is None or node.name in region:
            continue
        fits = view.shape(tensor) == shape or view.tensors[tensor].elements == 1
        if node.op in _ELEMENTWISE and fits:
            region.add(node.name)
            reads.update(node.inputs)
            walk.add(filter(None, node.inputs))
    return region, reads


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
    updated = _updates(view)
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
