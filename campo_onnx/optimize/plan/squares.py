"""Squares that make ONNX Runtime take a normalization of two precisions for one of its own.

Since opset 17 its optimizer writes ReduceMean, Sub, Pow and what follows as a LayerNormalization, looks
through the Casts in front of it and within it, and refuses the graph when scale and data are of two types
then. It does not look for a product.
"""

from collections.abc import Callable, Iterator

import onnx
from onnx import NodeProto, numpy_helper

from campo_onnx.ir.constants import constants_of, is_external
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import outer_reads

_FIRST_OPSET = 17
"""The first opset in which all inputs of LayerNormalization are of one type."""

Find = Callable[[str], NodeProto | None]


def write_squares_as_products(model: onnx.ModelProto) -> None:
    """Write Pow(x, 2) as Mul(x, x) in normalizations of two precisions, in place."""
    graph = model.graph
    if max((o.version for o in model.opset_import if not o.domain), default=0) < _FIRST_OPSET:
        return
    powers = [node for node in graph.node if _is(node, "Pow")]
    if not powers:
        return
    producer = {tensor: node for node in graph.node for tensor in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    constants = constants_of(graph)
    replaced: set[str] = set()
    for power in powers:
        base, exponent = power.input
        if exponent not in constants or not _is_two(constants[exponent]):
            continue
        if any(_is(node, "Cast") for node in _around(base, producer.get, readers)):
            power.op_type, power.input[1] = "Mul", base
            replaced.add(exponent)
    if replaced:
        read = {tensor for node in graph.node for tensor in (*node.input, *outer_reads(node))}
        unread = replaced - read - {value.name for value in (*graph.input, *graph.output)}
        replace_items(
            graph.initializer, [stored for stored in graph.initializer if stored.name not in unread]
        )


def _around(base: str, find: Find, readers: dict[str, list[NodeProto]]) -> Iterator[NodeProto | None]:
    """Yield the nodes that ONNX Runtime looks through, if a difference from a mean is squared."""
    before = find(base)
    difference = find(before.input[0]) if before is not None and _is(before, "Cast") else before
    mean = find(difference.input[1]) if difference is not None and _is(difference, "Sub") else None
    if difference is None or mean is None or not _is(mean, "ReduceMean"):
        return
    yield from (before, find(mean.input[0]))
    for quotient in (*readers.get(base, ()), *readers.get(difference.output[0], ())):
        if _is(quotient, "Div"):
            yield from readers.get(quotient.output[0], ())


def _is(node: NodeProto | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and not node.domain


def _is_two(tensor: onnx.TensorProto) -> bool:
    if is_external(tensor):
        return False
    value = numpy_helper.to_array(tensor)
    return value.size == 1 and value.dtype.kind in "fiu" and float(value.reshape(())) == 2.0
