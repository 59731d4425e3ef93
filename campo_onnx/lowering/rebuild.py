"""A graph built again node by node, so that rules write some of its nodes otherwise.

What is written goes through :class:`~campo_onnx.builder.graph.Graph`, as in an export: equal computations are
one node, chains of Reshape and Transpose are one, and what nothing reads any more is left out. Nodes that no
rule concerns keep their names.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TypeAlias

import onnx
from onnx import AttributeProto, helper, numpy_helper

from campo_onnx.builder.compact import reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import tensor_names
from campo_onnx.lowering.edit import OLDEST_OPSET
from campo_onnx.lowering.place import Place

Rule: TypeAlias = Callable[[Graph, Node], Value | None]
"""Writes the only output of a node otherwise; None leaves the node as it is."""

_BODIES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def rebuilt(imported: Imported, rules: Mapping[str, Rule], place: Place) -> onnx.ModelProto:
    """Write a graph with other nodes for some.

    It is the model itself where nothing changes, or where the graph has what an export never has: bodies of
    nodes, shapes that are not static, outputs left out or that no node computes, constants outside the file.
    """
    graph, view = imported.model.graph, imported.view
    if not any(node.op_type in rules and not node.domain for node in graph.node) or not _is_plain(imported):
        return imported.model
    g = Graph(
        opset=view.opset[""], target=place.operators, sizes_change=place.sizes_change, choices=place.choices
    )
    g.reserve(tensor_names(graph) | {node.name for node in graph.node})

    def declared(name: str) -> Value:
        tensor = view.tensors[name]
        assert tensor.shape is not None  # or the graph is not plain
        return Value(name=name, dtype=tensor.dtype, shape=tensor.shape, graph=g)

    values = {
        name: g.input(name, view.tensors[name].dtype, view.tensors[name].shape or ()) for name in view.inputs
    }
    for tensor in graph.initializer:
        values[tensor.name] = g.constant(numpy_helper.to_array(tensor), tensor.name)
    changes = False
    for proto in graph.node:
        node = Node(
            op_type=f"{proto.domain}:{proto.op_type}" if proto.domain else proto.op_type,
            inputs=tuple(values[name] if name else None for name in proto.input),
            outputs=tuple(declared(name) for name in proto.output),
            attributes={a.name: helper.get_attribute_value(a) for a in proto.attribute},
            name=proto.name,
        )
        with g.within(proto.name.rpartition("/")[0]):
            rule = rules.get(node.op_type)
            result = None if rule is None else rule(g, node)
            changes |= result is not None
            result = _merged(g, node) if result is None else result
        values.update(zip(proto.output, g.copy(node) if result is None else (result,), strict=True))
    other = g.model({n: values[n] for n in view.outputs}, optional_inputs=frozenset())
    if not changes and len(other.graph.node) == len(graph.node):
        return imported.model
    return _with_graph(imported.model, other)


def _is_plain(imported: Imported) -> bool:
    graph, view = imported.model.graph, imported.view
    return (
        view.opset.get("", 0) >= OLDEST_OPSET
        and all(tensor.shape is not None and tensor.dtype for tensor in view.tensors.values())
        and all("" not in node.output for node in graph.node)
        and not any(a.type in _BODIES or _is_empty(a) for node in graph.node for a in node.attribute)
        and not any(is_external(tensor) for tensor in imported.constants.values())
        and not {tensor.name for tensor in graph.initializer} & set(view.inputs)
        and view.producer.keys() >= set(view.outputs)
    )


def _is_empty(attribute: AttributeProto) -> bool:
    value = helper.get_attribute_value(attribute)
    return isinstance(value, list) and not value


def _merged(g: Graph, node: Node) -> Value | None:
    """Merge a Reshape or Transpose with the one that it reads."""
    x = node.inputs[0] if node.inputs else None
    if x is None or node.op_type not in ("Reshape", "Transpose") or g.producer(x, node.op_type) is None:
        return None
    if node.op_type == "Reshape":
        return reshape(g, x, node.outputs[0].shape)
    return transpose(g, x, node.attributes.get("perm", range(x.rank)[::-1]))


def _with_graph(model: onnx.ModelProto, other: onnx.ModelProto) -> onnx.ModelProto:
    """Give a model the nodes of another; what it says of itself, its inputs and outputs stay as they are."""
    result = deepcopy(model)
    for part in ("node", "initializer", "value_info"):
        replace_items(getattr(result.graph, part), getattr(other.graph, part))
    domains = {each.domain for each in result.opset_import}
    result.opset_import.extend(each for each in other.opset_import if each.domain not in domains)
    return result
