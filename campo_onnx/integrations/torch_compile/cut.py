"""The cut of a joint graph into forward and backward with the fewest bytes in between."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Movement
from campo_onnx.optimize.minimum_cut import Network

_CHEAP = frozenset({Movement.VIEW, Movement.REORDER, Movement.REPEAT})


def _may_run_twice(op: OpKey) -> bool:
    """Whether it is cheap enough to run in both halves, so that only one side of it is kept."""
    return op == CAST or spec(op).movement in _CHEAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Nodes of each half; some run in both.

    `kept` are tensors that the backward half reads and does not compute, graph inputs among them, tangents
    not; in the order of the graph.
    """

    forward: frozenset[str]
    backward: frozenset[str]
    kept: tuple[str, ...]


def cut(
    view: GraphView,
    *,
    forward_outputs: Collection[str],
    backward_outputs: Collection[str],
    tangents: Collection[str],
    input_bytes: Mapping[str, float],
) -> Cut:
    """Cut where the tensors in between are smallest.

    What the forward outputs need runs in the forward half, what depends on a tangent in the backward half;
    all else is free: the mask of a ReLU can be computed before and kept in a quarter of the bytes. Casts and
    what only moves elements may run in both halves. `tangents` are inputs that come with the backward pass;
    `input_bytes` says what keeping another input costs, which is 0 for a weight: it is there anyway.
    """
    behind = view.downstream(tangents)
    late = {node.name for node in view.nodes if not behind.isdisjoint(_reads(node))}
    early = view.upstream(forward_outputs)
    if late & early:
        raise UnsupportedModelError("an output of the forward pass depends on the backward pass")
    wanted = view.upstream(backward_outputs)
    twice = {n.name for n in view.nodes if n.name in early and _may_run_twice(n.op)}
    free = wanted - late - early
    choices = [n.name for n in view.nodes if n.name in wanted and (n.name in free or n.name in twice)]
    network = Network(choices)  # yes: runs in the backward half
    for tensor, size in _sizes(view, tangents, input_bytes):
        producer = view.producer.get(tensor)
        if producer is not None and producer.name in late:
            continue
        users = {use.node for use in view.consumers.get(tensor, ()) if use.node in wanted}
        always = bool(users & late) or tensor in backward_outputs
        network.pay(
            size,
            yes=None if always else tuple(sorted(users)),
            no=None if producer is None else (producer.name,),
        )
        if producer is not None and producer.name in free:
            for user in sorted(users & free):
                network.require(producer.name, user)
    for tensor in backward_outputs:
        if (producer := view.producer.get(tensor)) is not None and producer.name in free:
            network.pay(math.inf, no=(producer.name,))
    in_backward = network.cut().yes
    backward = frozenset((in_backward | late) & _needed(view, backward_outputs, in_backward | late))
    forward = frozenset(early | (free - in_backward))
    crossing = _read_from_outside(view, backward, backward_outputs, tangents)
    return Cut(forward=forward, backward=backward, kept=crossing)


def _sizes(
    view: GraphView, tangents: Collection[str], input_bytes: Mapping[str, float]
) -> list[tuple[str, float]]:
    sizes = [(name, input_bytes[name]) for name in view.inputs if name not in tangents]
    results = (t for node in view.nodes for t in node.outputs if t)
    return sizes + [
        (t, view.tensors[t].nbytes) for t in results if view.tensors[t].kind is not TensorKind.CONSTANT
    ]


def _needed(view: GraphView, tensors: Collection[str], among: Collection[str]) -> set[str]:
    """Nodes that tensors are computed by, looked for no further than nodes `among`."""
    needed: set[str] = set()
    wanted = set(tensors)
    for node in reversed(view.nodes):
        if node.name in among and not wanted.isdisjoint(node.outputs):
            needed.add(node.name)
            wanted.update(_reads(node))
    return needed


def _reads(node: OpNode) -> tuple[str, ...]:
    return tuple(t for t in (*node.inputs, *node.captures) if t)


def _read_from_outside(
    view: GraphView, backward: Collection[str], outputs: Collection[str], tangents: Collection[str]
) -> tuple[str, ...]:
    results = {t for name in backward for t in view.node[name].outputs}
    read = {t for name in backward for t in _reads(view.node[name])} | set(outputs)
    outside = read - results - set(tangents)
    return tuple(t for t in view.tensors if t in outside and view.tensors[t].kind is not TensorKind.CONSTANT)
