"""New versions of graph inputs (weights, state of optimizers, statistics) and the nodes that write them."""

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import Ops, having, spec
from campo_onnx.ops.spec import PRODUCTS_AND_NORMS, Family
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.canonical import with_canonical_ops

_ELEMENTWISE = having(Trait.ADDS, Trait.SCALES, Trait.SIGN) | op_keys(
    "Cast Clip Identity Max Mean Min Pow Reciprocal Shrink Sign Sqrt Where"
)
_RECTIFIERS = op_keys("LeakyRelu PRelu Relu ThresholdedRelu")
_MOVES = having(Trait.MOVES)
_SCATTERS = op_keys("ScatterElements ScatterND")
_PICKS = having(Trait.PART) | op_keys("GatherElements GatherND") | _SCATTERS
_BODIES = Ops(lambda registry: registry.of_family(Family.CONTROL_FLOW))
_MIXES = having(Trait.SUM, Trait.CONTRACTION) | op_keys("Conv")
_MULTIPLIES = having(Trait.SCALES) | _MIXES
_CARRIERS = _ELEMENTWISE | having(Trait.MOVES, Trait.EXTREME) | op_keys("Concat Pad Trilu") | _PICKS | _BODIES


class _Updates(NamedTuple):
    """New versions of graph inputs."""

    earlier: Mapping[str, tuple[str, ...]]  # by graph output: the inputs that it is a new version of
    region: frozenset[str]  # the nodes that compute them


def weight_update(view: GraphView) -> frozenset[str]:
    """Find the nodes that write new parameters, optimizer state or running statistics.

    A graph output is a new version of a graph input of its shape when the input reaches it through nodes
    that compute element by element, move elements, pick some, join some, put some in the place of others,
    or take the largest: weights may be transposed, cut out of one long vector, or rows of a table. Several
    that are joined may be added up, with a factor for each (an average of weights). A branch or a loop hands
    on the tensors of its results' shapes: the new weights, or the old ones where a gradient is not finite.
    The update is these nodes, what computes the few factors that they multiply weights by, and what computes
    elementwise from where the gradient leaves the network (a MatMul, a reduction), with what moves a gradient
    after it was scaled.
    """
    return _updates(view).region


def earlier_versions(view: GraphView) -> Mapping[str, tuple[str, ...]]:
    """Find the graph outputs that are new versions of graph inputs, and the inputs in question."""
    return _updates(view).earlier


@remembered
def _updates(view: GraphView) -> _Updates:
    """Follow inputs to the outputs of their shape, and go back from these."""
    view = with_canonical_ops(view)
    inputs = [t for t in view.inputs if view.is_float32(t) and view.shape(t) is not None]
    alike: dict[tuple[int, ...] | None, int] = {}  # by shape: a bit for each of its inputs
    for i, tensor in enumerate(inputs):
        alike[view.shape(tensor)] = alike.get(view.shape(tensor), 0) | 1 << i
    reached = _reached(view, inputs)
    wanted: dict[str, int] = {}
    for output in filter(view.is_float32, view.outputs):
        if output in view.producer and (bits := _bits(reached, output) & alike.get(view.shape(output), 0)):
            wanted[output] = bits
    earlier = {
        output: tuple(sorted(t for i, t in enumerate(inputs) if bits >> i & 1))
        for output, bits in wanted.items()
    }
    region: set[str] = set()
    walk = Walk[tuple[str, tuple[int, ...] | None]](())
    for node in reversed(view.nodes):
        bits = _either(wanted.get(t, 0) for t in node.outputs)
        carried = _carried(node, view, reached) if bits else ()
        if not carried:
            continue
        region.add(node.name)
        for tensor in carried:
            wanted[tensor] = wanted.get(tensor, 0) | bits & _bits(reached, tensor)
        # Rows put into place, parts that are joined, and tensors that a branch chooses from.
        own = () if node.op in _ELEMENTWISE else (*node.inputs, *node.captures)
        walk.add((tensor, view.shape(node.outputs[0])) for tensor in filter(None, node.inputs))
        walk.add((tensor, view.shape(tensor)) for tensor in filter(None, own))
    others = _computed_with(region, view) | _factors(region, wanted, view)
    for tensor, shape in walk:
        origin = view.origin(tensor, _MOVES)  # a gradient that is moved after it was scaled
        computed, sizes = view.producer.get(origin), {view.tensors[t].elements for t in (origin, tensor)}
        fits = (view.shape(tensor) == shape and len(sizes) == 1) or view.tensors[tensor].elements == 1
        if computed is None or computed.op not in _ELEMENTWISE or not fits:
            continue
        region.add(computed.name)
        own_shape = shape if origin == tensor else view.shape(origin)
        walk.add((t, own_shape) for t in filter(None, computed.inputs))
        while tensor != origin:
            region.add(view.producer[tensor].name)
            tensor = view.producer[tensor].inputs[0]
    return _Updates(earlier=earlier, region=frozenset(region | others))


def _computed_with(region: AbstractSet[str], view: GraphView) -> frozenset[str]:
    """Nodes that compute what a region reads of what it writes: the norm of a new weight."""
    computed = {t for name in region for t in view.node[name].outputs if t}
    for node in view.nodes:
        if not computed.isdisjoint(node.inputs) and spec(node.op).family not in PRODUCTS_AND_NORMS:
            computed.update(filter(None, node.outputs))
    wanted = computed.intersection(t for name in region for t in view.node[name].inputs)
    statistics: set[str] = set()
    for node in reversed(view.nodes):
        if not wanted.isdisjoint(node.outputs):
            statistics.add(node.name)
            wanted.update(computed.intersection(node.inputs))
    return frozenset(statistics)


def _factors(region: AbstractSet[str], carried: Mapping[str, int], view: GraphView) -> frozenset[str]:
    """Nodes that compute, of no more numbers than they give, factors that a region multiplies weights by."""
    products = (view.node[name] for name in region if view.node[name].op in _MULTIPLIES)
    walk = Walk(
        (t, _size(t, view))
        for node in products
        for t in node.inputs
        if t and not carried.get(t) and _size(t, view) < _size(node.outputs[0], view)
    )
    nodes: set[str] = set()
    for tensor, most in walk:
        node = view.producer.get(tensor)
        if node is not None and all(_size(t, view) <= most for t in node.inputs if t):
            nodes.add(node.name)
            walk.add((t, most) for t in node.inputs if t)
    return frozenset(nodes)


def _size(tensor: str, view: GraphView) -> float:
    """Elements of a tensor; one whose shape nothing tells counts as large."""
    elements = view.tensors[tensor].elements
    return math.inf if elements is None else elements


def _reached(view: GraphView, inputs: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """The inputs that come to each tensor, a bit for each; one number for each part of what is joined."""
    reached: dict[str, tuple[int, ...]] = {tensor: (1 << i,) for i, tensor in enumerate(inputs)}
    for node in view.nodes:
        sources = [reached[t] for t in _carried(node, view, reached) if t in reached]
        if not sources:
            continue
        parts: tuple[int, ...]
        if node.op in _MIXES:
            parts = (_either(map(_either, sources)),)
        elif node.op.label == "Concat":
            parts = tuple(_bits(reached, t) for t in node.inputs)
        else:
            most = max(map(len, sources))
            sources = [one if len(one) == most else (_either(one),) for one in sources]
            parts = tuple(_either(one[i % len(one)] for one in sources) for i in range(most))
        is_cut = node.op.label == "Split" and len(parts) == len(node.outputs)
        reached |= {t: (parts[i],) if is_cut else parts for i, t in enumerate(node.outputs) if t}
    return reached


def _added_up(node: OpNode, view: GraphView, reached: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The inputs of a node that joined several tensors of its result's size, which it adds up.

    A product of matrices has one coefficient for each.
    """
    size = view.tensors[node.outputs[0]].elements
    for tensor in node.inputs[:2]:
        count = len(reached.get(tensor, ()))
        factors = {view.tensors[t].elements for t in node.inputs if t != tensor and view.is_float32(t)}
        if size and count > 1 and view.tensors[tensor].elements == count * size and factors <= {count}:
            yield tensor


@remembered
def _projections(view: GraphView) -> frozenset[str]:
    """Rectifiers of a training step that neither its loss nor any other number depends on: of new weights.

    An activation that enters and leaves a graph in the same shape is not a weight.
    """
    numbers = view.upstream(t for t in view.outputs if view.is_float32(t) and view.tensors[t].elements == 1)
    return frozenset(n.name for n in view.nodes if n.op in _RECTIFIERS) - numbers if numbers else numbers


def _bits(reached: Mapping[str, tuple[int, ...]], tensor: str) -> int:
    return _either(reached.get(tensor, ()))


def _either(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)


def _carried(node: OpNode, view: GraphView, reached: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The inputs whose elements, or what is computed of them, a node gives; none that it adds up by index."""
    if node.op in _RECTIFIERS:
        return node.inputs[:1] if node.name in _projections(view) else ()
    if node.op not in _CARRIERS:
        return tuple(_added_up(node, view, reached)) if node.op in _MIXES else ()
    if node.op in _BODIES:
        shapes = {view.shape(t) for t in node.outputs if t}
        return tuple(t for t in (*node.inputs, *node.captures) if t and view.shape(t) in shapes)
    if node.op in _SCATTERS and node.attributes.get("reduction", "none") in ("none", b"none"):
        return node.inputs[::2]
    return node.inputs[:1] if node.op in _PICKS else node.inputs
