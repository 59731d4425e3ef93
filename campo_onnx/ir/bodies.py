"""Bodies of If, Loop and Scan as graphs of their own, with the types of what they read from around them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import onnx
from onnx import GraphProto, TensorProto, helper, numpy_helper

from campo_onnx.errors import CampoError
from campo_onnx.ir import shapes
from campo_onnx.ir.constants import constants_of
from campo_onnx.ir.importer import view_of
from campo_onnx.ir.sort import body_reads, name_nodes
from campo_onnx.ir.view import GraphView, TensorInfo


@dataclass(frozen=True, kw_only=True)
class Body:
    """A body with its view and its constants."""

    # The body with named nodes, and what it reads from outside as further inputs or constants.
    graph: GraphProto
    view: GraphView
    constants: Mapping[str, TensorProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_body(body: GraphProto, around: GraphView, types: Sequence[TensorInfo | None]) -> Body | None:
    """Infer the types in a body; None where nothing tells them.

    `around`: the graph of the node that has the body.
    `types`: types of the inputs of the body; None where it declares one itself.
    """
    graph = deepcopy(body)
    name_nodes(graph)
    for value, info in zip(graph.input, types, strict=False):
        if info is not None and info.dtype:
            value.CopyFrom(value_info(value.name, info))
    for tensor in body_reads(body):
        if tensor in around.values:
            graph.initializer.append(numpy_helper.from_array(around.values[tensor], tensor))
        elif tensor in around.tensors and around.tensors[tensor].dtype:
            graph.input.append(value_info(tensor, around.tensors[tensor]))
        else:
            return None
    opsets = [helper.make_opsetid(domain, version) for domain, version in around.opset.items()]
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        view = view_of(model, shapes.infer(model, {}))
    except CampoError:
        return None
    return Body(
        graph=model.graph,
        view=view,
        constants=constants_of(body),
        inputs=tuple(value.name for value in body.input),
        outputs=tuple(value.name for value in body.output),
    )


def value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    """Declare a tensor by its type and shape."""
    return helper.make_tensor_value_info(name, info.dtype, info.shape)
