"""Gradients that a graph spells out, as the one operation that torch has for each.

The gradient of a convolution's weight is a convolution whose kernel is the gradient of what came out::

    dw = Transpose <perm = [1, 0, 2, 3]> (Conv (images, Transpose <perm = [1, 0, 2, 3]> (dy)))

That holds whatever `images` and `dy` are, so that nothing has to be known of how they were computed; strides
and dilations have changed roles. The gradient of a max pool adds what came out to where it was taken from::

    y, place = MaxPool (x)
    dx = ScatterElements <reduction = "add"> (zeros, Reshape (place, -1), Reshape (dy, -1))

ONNX Runtime's MaxPoolGrad does not know the size of what was pooled; the pool does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnx import GraphProto, NodeProto, helper

from campo_onnx.ir.constants import array_of, constants_of, is_external
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation.node import attributes_of

RAISED = "campo_onnx.torch"
"""Domain of the operators that stand for torch's; no file may use it."""
WEIGHT_GRADIENT = OpKey(RAISED, "WeightGradient")
MAX_POOL_GRADIENT = OpKey(RAISED, "MaxPoolGradient")

_MAX_POOL, _CONV, _SCATTER = OpKey("", "MaxPool"), OpKey("", "Conv"), OpKey("", "ScatterElements")
_MAX_POOL_GRAD = OpKey("", "MaxPoolGrad")
_RESHAPE = OpKey("", "Reshape")
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


class _Readers:
    """Who computes and who reads each tensor of a graph."""

    def __init__(self, graph: GraphProto) -> None:
        self.constants = constants_of(graph)
        self.producer = {name: node for node in graph.node for name in node.output if name}
        self.reads = Counter(v.name for v in graph.output)
        for node in graph.node:
            self.reads.update((*node.input, *outer_reads(node)))

    def only(self, name: str, op: OpKey) -> NodeProto | None:
        """Return the node of an operator that computes a tensor which only one node reads."""
        node = self.producer.get(name)
        return node if node is not None and OpKey.of(node) == op and self.reads[name] == 1 else None

    def reshaped(self, name: str) -> str:
        """Return the tensor whose elements a tensor has in another shape."""
        while (node := self.producer.get(name)) is not None and _is_reshape(node):
            name = node.input[0]
        return name

    def is_zero(self, name: str) -> bool:
        """Whether all elements of a tensor are 0, however many there are."""
        node = self.producer.get(self.reshaped(name))
        if node is not None and OpKey.of(node) == OpKey("", "ConstantOfShape"):
            value = attributes_of(node).get("value")
            return value is None or not value.any()
        if node is not None and OpKey.of(node) == OpKey("", "Expand"):
            return self.is_zero(node.input[0])
        constant = self.constants.get(self.reshaped(name))
        return constant is not None and not is_external(constant) and not array_of(constant).any()


def raised(graph: GraphProto) -> None:
    """Write gradients of weights of convolutions and of max pools as operators of torch's, in place."""
    readers = _Readers(graph)
    replaced: dict[str, NodeProto] = {}
    for node in graph.node:
        rule = _RULES.get(OpKey.of(node))
        new = rule(node, readers) if rule is not None else None
        if new is not None:
            replaced[new.output[0]] = new
    nodes = [replaced.get(node.output[0], node) if node.output else node for node in graph.node]
    replace_items(graph.node, list(_still_read(nodes, graph)) if replaced else nodes)


def _still_read(nodes: list[NodeProto], graph: GraphProto) -> Iterator[NodeProto]:
    """Leave out what was computed only for nodes that are gone."""
    needed = {value.name for value in graph.output}
    left = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.output):
            continue
        needed.update((*node.input, *outer_reads(node)))
        left.append(node)
    return reversed(left)


def _is_reshape(node: NodeProto) -> bool:
    return not node.domain and node.op_type in _RESHAPES


def _swaps_first_two(node: NodeProto | None) -> bool:
    """Whether a node swaps the first two axes, and leaves the others where they are."""
    if node is None or OpKey.of(node) != OpKey("", "Transpose"):
        return False
    perm = attributes_of(node).get("perm", [])
    return len(perm) > 2 and perm == [1, 0, *range(2, len(perm))]


def _weight_gradient(node: NodeProto, readers: _Readers) -> NodeProto | None:
    # Of one channel a group, swapping back is a Reshape.
    shape = list(node.input[1:2]) if OpKey.of(node) == _RESHAPE else []
    conv = readers.only(node.input[0], _CONV) if shape or _swaps_first_two(node) else None
    if conv is None or len([name for name in conv.input if name]) != 2:
        return None
    settings = attributes_of(conv)
    computed = readers.producer.get(conv.input[1])
    if not _swaps_first_two(computed) or settings.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if any(pad < 0 for pad in settings.get("pads", [])):
        return None
    settings.pop("kernel_shape", None)
    settings |= {"allowzero": attributes_of(node).get("allowzero", 0)}
    return _node(WEIGHT_GRADIENT, node, [*conv.input[:2], *shape], settings)


def _max_pool_of(place: str, readers: _Readers) -> tuple[NodeProto, dict[str, Any]] | None:
    """Return the pool whose places a tensor has, if torch has the same pool."""
    pool = readers.producer.get(readers.reshaped(place))
    if pool is None or OpKey.of(pool) != _MAX_POOL or pool.output[1:] != [readers.reshaped(place)]:
        return None
    settings = attributes_of(pool)
    differs = (
        settings.get("auto_pad", "NOTSET") != "NOTSET"
        or settings.get("ceil_mode")
        or settings.get("storage_order")
    )
    return None if differs else (pool, settings)


def _scattered(node: NodeProto, readers: _Readers) -> NodeProto | None:
    settings = attributes_of(node)
    match = _max_pool_of(node.input[1], readers)
    if match is None or settings.get("axis", 0) != 0 or not readers.is_zero(node.input[0]):
        return None
    pool, window = match
    how = settings.get("reduction", "none")
    if how != "add" and not (how == "none" and _are_apart(window)):
        return None
    inputs = [node.input[2], pool.input[0], readers.reshaped(node.input[1]), node.input[0]]
    return _node(MAX_POOL_GRADIENT, node, inputs, window)


def _are_apart(window: Mapping[str, Any]) -> bool:
    """Whether no two windows share an element."""
    kernel = window["kernel_shape"]
    strides, dilations = (window.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    return all(s >= d * (k - 1) + 1 for k, s, d in zip(kernel, strides, dilations, strict=True))


def _of_runtime(node: NodeProto, readers: _Readers) -> NodeProto | None:
    match = _max_pool_of(node.input[1], readers)
    if match is None:
        return None
    pool, window = match
    return _node(MAX_POOL_GRADIENT, node, [node.input[0], pool.input[0], node.input[1], ""], window)


def _node(op: OpKey, node: NodeProto, inputs: Any, settings: Mapping[str, Any]) -> NodeProto:
    """Make the node that stands in the place of another one."""
    return helper.make_node(
        op.op_type, list(inputs), [node.output[0]], name=node.name, domain=op.domain, **settings
    )


_RULES: Mapping[OpKey, Callable[[NodeProto, _Readers], NodeProto | None]] = {
    OpKey("", "Transpose"): _weight_gradient,
    _RESHAPE: _weight_gradient,
    _SCATTER: _scattered,
    _MAX_POOL_GRAD: _of_runtime,
}
