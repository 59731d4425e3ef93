"""Editing a graph with onnx-graphsurgeon, and putting back what graphsurgeon does not carry.

graphsurgeon rewires nodes and tensors well, but has no place for documentation strings, node and
value metadata, optional types, or attributes that are not text. So it is given the topology only;
everything else of an unchanged node or tensor comes back from the given model, byte for byte.
"""

from collections.abc import Iterable, Mapping

import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto


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


def model_of(
    topology: gs.Graph,
    given: onnx.ModelProto,
    *,
    retyped: Mapping[str, str],
    dtype: int,
    attributes: Mapping[str, Mapping[str, int | TensorProto]],
    initializers: Iterable[TensorProto],
    dropped: frozenset[str],
) -> onnx.ModelProto:
    """Export an edited topology as a full model.

    Parameters
    ----------
    topology
        The edited graph.
    given
        The model it came from; not changed.
    retyped
        New tensors that are low versions of given ones: new name to given name.
    dtype
        Type of the new tensors.
    attributes
        New attribute values of given nodes, by node name and attribute name.
    initializers
        New initializers.
    dropped
        Given initializers that are left out.
    """
    bare = gs.export_onnx(topology, do_type_check=False).graph
    model = onnx.ModelProto()
    _copy_without_graph(given, model)
    graph = model.graph
    given_nodes = {node.name: node for node in given.graph.node}
    for node in bare.node:
        graph.node.append(_restored(node, given_nodes.get(node.name), attributes.get(node.name, {})))
    for field in ("input", "output", "quantization_annotation", "sparse_initializer", "metadata_props"):
        getattr(graph, field).extend(getattr(given.graph, field))
    graph.name, graph.doc_string = given.graph.name, given.graph.doc_string
    graph.initializer.extend(t for t in given.graph.initializer if t.name not in dropped)
    graph.initializer.extend(initializers)
    made = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    infos = {value.name: value for value in given.graph.value_info}
    graph.value_info.extend(value for value in given.graph.value_info if value.name in made)
    described = infos | {value.name: value for value in (*given.graph.input, *given.graph.output)}
    for name, given_name in retyped.items():
        if given_name in described and name in made and name not in infos:
            value = onnx.ValueInfoProto()
            value.CopyFrom(described[given_name])
            value.name = name
            value.type.tensor_type.elem_type = dtype
            graph.value_info.append(value)
    return model


def _copy_without_graph(given: onnx.ModelProto, model: onnx.ModelProto) -> None:
    for field, value in given.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(model, field.name).extend(value)
        else:
            setattr(model, field.name, value)


def _restored(
    node: onnx.NodeProto, given: onnx.NodeProto | None, attributes: Mapping[str, int | TensorProto]
) -> onnx.NodeProto:
    if given is None:
        return node
    restored = onnx.NodeProto()
    restored.CopyFrom(given)
    del restored.input[:]
    del restored.output[:]
    restored.input.extend(node.input)
    restored.output.extend(node.output)
    if attributes:
        kept = [a for a in given.attribute if a.name not in attributes]
        del restored.attribute[:]
        restored.attribute.extend(kept)
        restored.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
    return restored
