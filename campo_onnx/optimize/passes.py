"""The walks that strategies are made of: taint, between, flood. Pure functions over node names."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.optimize.lists.classify import Classification
from campo_onnx.optimize.lists.oplists import OpClass

_GRAY = (OpClass.INFER, OpClass.CLEAR)
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})


def taint(view: GraphView, classification: Classification) -> frozenset[str]:
    """Find infer and clear nodes that a deny node makes unsafe (traverse 2; TensorFlow's pass 2).

    A node is tainted when it lies on a path from a deny node to a deny or infer node through infer
    and clear nodes; so a tail of clear nodes that leads to allow nodes only is spared.
    """
    class_of = {name: classified.op_class for name, classified in classification.classes.items()}
    leads_on = _clear_leading_to_infer_or_deny(view, classification, class_of)
    denied = [name for name in view.node if class_of[name] is OpClass.DENY]
    walk = Walk(denied)
    for unsafe in walk:
        reached = (node.name for node in _carried_to(view.node[unsafe], view, classification))
        gray = (name for name in reached if class_of[name] in _GRAY)
        walk.add(name for name in gray if class_of[name] is OpClass.INFER or name in leads_on)
    return frozenset(walk.seen.difference(denied) - classification.released)


def _carried_to(node: OpNode, view: GraphView, classification: Classification) -> Iterator[OpNode]:
    """Yield the nodes that unsafety spreads to in one step."""
    for tensor in node.outputs:
        if not tensor or not (classification.taint_through_decisions or _is_wide(tensor, view)):
            continue
        for use in view.consumers.get(tensor, ()):
            if use not in classification.contained:
                yield view.node[use.node]


def _is_wide(tensor: str, view: GraphView) -> bool:
    info = view.tensors.get(tensor)
    return info is not None and info.dtype in _WIDE


def _clear_leading_to_infer_or_deny(
    view: GraphView, classification: Classification, class_of: dict[str, OpClass]
) -> frozenset[str]:
    reached: set[str] = set()
    for node in reversed(view.nodes):
        if class_of[node.name] is OpClass.CLEAR and any(
            consumer.name in reached or class_of[consumer.name] in (OpClass.INFER, OpClass.DENY)
            for consumer in _carried_to(node, view, classification)
        ):
            reached.add(node.name)
    return frozenset(reached)


def between(view: GraphView, low: frozenset[str], may_pass: Callable[[str], bool]) -> frozenset[str]:
    """Find the nodes on paths from a low node to a low node (traverse 3; TensorFlow's pass 3).

    `low`: nodes that are low already; paths start and end there.
    `may_pass`: whether a path may lead through a node, which then becomes low.
    """
    forward = _reach(view, low, may_pass, consumers)
    return forward & _reach(view, low, lambda name: name in forward, writers)


def flood(view: GraphView, low: frozenset[str], may_pass: Callable[[str], bool]) -> frozenset[str]:
    """Find what can be reached from low nodes, up or down, through nodes that `may_pass`."""
    return _reach(view, low, may_pass, neighbours)


def connected(view: GraphView, members: AbstractSet[str]) -> Iterator[frozenset[str]]:
    """Yield the connected groups of some nodes, in the order of the graph."""
    seen: set[str] = set()
    for node in view.nodes:
        if node.name in members and node.name not in seen:
            group = flood(view, frozenset({node.name}), members.__contains__) | {node.name}
            seen |= group
            yield group


def _reach(
    view: GraphView,
    start: frozenset[str],
    may_pass: Callable[[str], bool],
    step: Callable[[OpNode, GraphView], Iterator[OpNode]],
) -> frozenset[str]:
    walk = Walk(start)
    for name in walk:
        names = (node.name for node in step(view.node[name], view))
        walk.add(other for other in names if other not in walk.seen and may_pass(other))
    return frozenset(walk.seen - start)


def consumers(node: OpNode, view: GraphView) -> Iterator[OpNode]:
    """Yield the nodes that read an FP32 output of `node`."""
    for tensor in node.outputs:
        if view.is_float32(tensor):
            for use in view.consumers.get(tensor, ()):
                yield view.node[use.node]


def writers(node: OpNode, view: GraphView) -> Iterator[OpNode]:
    """Yield the nodes that make an FP32 input of `node`."""
    for tensor in node.inputs:
        if tensor in view.producer and view.is_float32(tensor):
            yield view.producer[tensor]


def neighbours(node: OpNode, view: GraphView) -> Iterator[OpNode]:
    """Yield consumers and producers of `node`."""
    yield from consumers(node, view)
    yield from writers(node, view)
