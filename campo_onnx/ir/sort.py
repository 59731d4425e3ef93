"""Names and order of nodes: unique names, topological order, and who reads what from outside."""

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count

import onnx

from campo_onnx.errors import ModelError
from campo_onnx.ir.proto import replace_items

_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node of `graph` a name of its own, in place; the first of several keeps it.

    ONNX Runtime refuses repeated names, and profiles are joined to nodes by name.
    """
    taken = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for node in graph.node:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        node.name = fresh(node.name or node.op_type, taken)
        seen.add(node.name)


def fresh(stem: str, taken: set[str]) -> str:
    """Find a name close to `stem` that is not in `taken`, and take it.

    >>> fresh("x", {"x", "x_1"})
    'x_2'
    >>> fresh("y", {"x"})
    'y'
    """
    names = chain([stem], (f"{stem}_{number}" for number in count(1)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def tensor_names(graph: onnx.GraphProto) -> set[str]:
    """List the tensors of a graph and of its bodies: a body may not name one as the graph around it does."""
    names: set[str] = set()
    for inner in graphs_of(graph):
        names.update(value.name for value in inner.input)
        names.update(tensor.name for tensor in inner.initializer)
        names.update(name for node in inner.node for name in node.output if name)
    return names


def sort_nodes(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> None:
    """Put the nodes of `graph` and of its bodies into topological order, in place.

    A sorted graph stays as it is.
    """
    sources = {"", *(v.name for v in graph.input), *(t.name for t in graph.initializer)}
    producer = _producers(graph, sources)
    readable = outer | sources | producer.keys()
    for node in graph.node:
        for body in bodies(node):
            sort_nodes(body, readable)
    reads = [(*node.input, *outer_reads(node)) for node in graph.node]
    _refuse_unmade(graph, reads, readable)
    if all(producer.get(t, -1) < i for i, tensors in enumerate(reads) for t in tensors):
        return
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, tensors in enumerate(reads):
        sorter.add(index, *(producer[t] for t in tensors if t in producer))
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        names = [graph.node[i].name for i in error.args[1][1:]]  # a ring: the first comes last again
        raise ModelError(f"the nodes {', '.join(names)} wait for each other") from None
    replace_items(graph.node, [graph.node[i] for i in order])


def _producers(graph: onnx.GraphProto, outer: set[str]) -> dict[str, int]:
    """Position of the node that makes each tensor."""
    producer: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for tensor in filter(None, node.output):
            if tensor in producer or tensor in outer:
                raise ModelError(
                    f"the tensor {tensor!r} is made twice, the second time by node {node.name!r}"
                )
            producer[tensor] = index
    return producer


def _refuse_unmade(graph: onnx.GraphProto, reads: Sequence[Sequence[str]], readable: frozenset[str]) -> None:
    for node, tensors in zip(graph.node, reads, strict=True):
        for tensor in tensors:
            if tensor not in readable:
                raise ModelError(
                    f"node {node.name!r} ({node.op_type}) reads the tensor {tensor!r}, which nothing makes",
                    remedy="The file is damaged or was cut out of a larger graph; export it again.",
                )
    for value in graph.output:
        if value.name not in readable:
            raise ModelError(f"the graph output {value.name!r} is made by no node")


def outer_reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """List the tensors that bodies of a node (If, Loop, Scan) read from outside."""
    return tuple(dict.fromkeys(tensor for body in bodies(node) for tensor in body_reads(body)))


def body_reads(body: onnx.GraphProto) -> tuple[str, ...]:
    """List the tensors that a body reads from outside."""
    reads: dict[str, None] = {}
    own = {value.name for value in body.input} | {t.name for t in body.initializer}
    for inner in body.node:
        for tensor in (*inner.input, *outer_reads(inner)):
            if tensor and tensor not in own:
                reads[tensor] = None
        own.update(inner.output)
    reads.update(dict.fromkeys(v.name for v in body.output if v.name not in own))
    return tuple(reads)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies of its nodes, at any depth."""
    yield graph
    for node in with_bodies(graph.node):
        yield from bodies(node)


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each before those of its bodies, at any depth."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from with_bodies(body.node)


def bodies(node: onnx.NodeProto) -> Sequence[onnx.GraphProto]:
    """The graphs that are attributes of a node."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            graphs.append(attribute.g)
        elif attribute.type == _GRAPHS:
            graphs += attribute.graphs
    return graphs
