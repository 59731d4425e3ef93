"""Tensors that are computed apart, joined, and whose gradients are slices of the gradient of the whole."""

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.peepholes import part_of
from campo_onnx.builder.value import Node, Value


def joined_rectified(g: Graph, gradient: Value, x: Value) -> tuple[Node, Value] | None:
    """Find what a rectified tensor is joined to with others such that one mask serves all of them.

    The Slice cuts the gradient of `x` out of a whole one, which is that of a Concat of `x` and others. None
    unless all of them are rectified and nobody else reads one.
    """
    cut = g.producer(gradient, "Slice")
    joined = _only_reader(g, x, "Concat")
    if cut is None or joined is None or not all(_is_rectified(g, v) for v in joined.inputs):
        return None
    whole, before = joined.outputs[0], 0
    for part in joined.inputs:
        if part is x:
            break
        assert part is not None  # a Concat leaves out none
        before += part.shape[joined.attributes["axis"]]
    place = (joined.attributes["axis"], before, before + x.shape[joined.attributes["axis"]])
    return (cut, whole) if first_input(cut).shape == whole.shape and part_of(cut) == place else None


def first_input(node: Node) -> Value:
    """Give what a node reads first."""
    assert node.inputs[0] is not None  # nobody asks for one that is left out
    return node.inputs[0]


def _is_rectified(g: Graph, x: Value | None) -> bool:
    if x is None or _only_reader(g, x, "Concat") is None:
        return False
    inner = g.producer(x, "Concat")
    return g.producer(x, "Relu") is not None or (
        inner is not None and all(_is_rectified(g, v) for v in inner.inputs)
    )


def _only_reader(g: Graph, x: Value, op_type: str) -> Node | None:
    readers = g.consumers(x)
    once = len(readers) == 1 and readers[0].op_type == op_type and sum(v is x for v in readers[0].inputs) == 1
    return readers[0] if once else None
