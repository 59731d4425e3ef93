"""Editing a graph with onnx-graphsurgeon, and putting back what graphsurgeon does not carry.

graphsurgeon rewires nodes and tensors well, but has no place for documentation strings, node and
value metadata, optional types, or attributes that are not text. So it is given the topology only;
everything else of an unchanged node or tensor comes back from the given model, byte for byte.
"""

from collections.abc import Container, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto

from campo_onnx.ir.proto import without_graph


def topology_of(graph: onnx.GraphProto) -> gs.Graph:
    """Import nodes and edges, without attributes, values and types.

    Nodes keep their names, by which :func:`model_of` finds them again. Tensors that bodies of a
    node read from outside are not edges here.
    """
    bare = onnx.GraphProto(name=graph.name or "graph")
    for node in graph.node:
        bare.node.add(
            op_type=node.op_type, domain=node.domain, name=node.name, input=node.input, output=node.output
        )
    bare.input.extend(onnx.ValueInfoProto(name=value.name) for value in graph.input)
    bare.output.extend(onnx.ValueInfoProto(name=value.name) for value in graph.output)
    return gs.import_onnx(
        onnx.ModelProto(graph=bare, ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=20)])
    )


def read_instead(node: gs.Node, position: int, tensor: gs.Tensor) -> None:
    """Let a node read another tensor at a position of its inputs.

    Assigning to ``node.inputs`` would look for the node among all readers of the old tensor, which takes
    minutes where there are 100,000. Its list of readers stays as it was; nothing here asks for it.
    """
    list.__setitem__(node.inputs, position, tensor)
    list.append(tensor.outputs, node)


@dataclass(frozen=True, slots=True)
class Wiring:
    """One node of an edited graph: what it reads and makes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    added: onnx.NodeProto | None  # the node itself where the given graph has none of that name


def take_apart(
    topology: gs.Graph, names: Container[str], tensors: Iterable[gs.Tensor] = ()
) -> tuple[Wiring, ...]:
    """Say how the nodes of an edited graph are connected, in order, and empty it.

    graphsurgeon's nodes, tensors and lists hold each other, some two kilobytes a node. Unless they are
    emptied, they wait for Python's collector while the model is built and checked beside them.

    `names`: names of the nodes that were in it before it was edited.
    `tensors`: tensors that its nodes may not read any more.
    """
    added = gs.Graph(nodes=[node for node in topology.nodes if node.name not in names])
    exported = {node.name: node for node in gs.export_onnx(added, do_type_check=False).graph.node}
    wirings = tuple(
        Wiring(
            node.name,
            tuple(tensor.name for tensor in node.inputs),
            tuple(tensor.name for tensor in node.outputs),
            exported.get(node.name),
        )
        for node in topology.nodes
    )
    for node in topology.nodes:
        for tensor in (*node.inputs, *node.outputs):
            vars(tensor).clear()
        vars(node).clear()
    for tensor in tensors:
        vars(tensor).clear()
    topology.nodes.clear()
    return wirings


def model_of(
    wirings: Iterable[Wiring],
    source: onnx.ModelProto,
    *,
    retyped: Mapping[str, str],
    dtype: int,
    attributes: Mapping[str, Mapping[str, int | float | TensorProto]],
    initializers: Iterable[TensorProto],
    dropped: frozenset[str],
) -> onnx.ModelProto:
    """Write an edited topology as a full model.

    `retyped`: new tensors that are low versions of given ones: new name to given name.
    `attributes`: new attribute values of given nodes, by node name and attribute name.
    """
    given_nodes = {node.name: node for node in source.graph.node}
    model = without_graph(source)
    graph = model.graph
    for wiring in wirings:
        _write(wiring, graph.node.add(), given_nodes.get(wiring.name), attributes.get(wiring.name, {}))
    for field in ("input", "output", "quantization_annotation", "metadata_props"):
        getattr(graph, field).extend(getattr(source.graph, field))
    graph.name, graph.doc_string = source.graph.name, source.graph.doc_string
    graph.initializer.extend(t for t in source.graph.initializer if t.name not in dropped)
    graph.initializer.extend(initializers)
    tensors = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    infos = {value.name: value for value in source.graph.value_info}
    graph.value_info.extend(value for value in source.graph.value_info if value.name in tensors)
    described = infos | {value.name: value for value in (*source.graph.input, *source.graph.output)}
    for name, given_name in retyped.items():
        if given_name in described and name in tensors and name not in infos:
            value = deepcopy(described[given_name])
            value.name = name
            value.type.tensor_type.elem_type = dtype
            graph.value_info.append(value)
    return model


def _write(
    wiring: Wiring,
    node: onnx.NodeProto,
    source: onnx.NodeProto | None,
    attributes: Mapping[str, int | float | TensorProto],
) -> None:
    if source is None:
        assert wiring.added is not None
        node.CopyFrom(wiring.added)
        return
    node.CopyFrom(source)
    node.input[:] = wiring.inputs
    node.output[:] = wiring.outputs
    if attributes:
        unchanged = [a for a in source.attribute if a.name not in attributes]
        del node.attribute[:]
        node.attribute.extend(unchanged)
        node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
