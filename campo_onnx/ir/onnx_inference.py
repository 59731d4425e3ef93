"""ONNX's own inference over a whole graph, with a bound on the values it follows.

To find computed shapes, ONNX follows the values of tensors, and takes each that has one dimension for such a
shape, weights too: dozens of bytes an element, which a file of a hundred bytes can claim by the billion. So
types are inferred without values first. Only where that leaves a shape open they are followed, and then by
nodes that compute a few integers.
"""

from collections.abc import Collection, Mapping

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from campo_onnx.ir.dims import static_shape
from campo_onnx.ir.sort import bodies
from campo_onnx.ops.fold import is_small

HIDDEN = "campo_onnx.hidden"
"""A domain that ONNX's inference passes over; models to be inferred import it."""

_FOLLOWED = frozenset({TensorProto.INT32, TensorProto.INT64})
_OF_SHAPES = frozenset({"Shape", "Size"})  # they look at the type of what they read
_ARITHMETIC = frozenset({"Add", "Sub", "Mul"})
_LIKE_ARITHMETIC = "Div"  # its rule for types is the same, and no values are followed through it
_FOLLOWING = _OF_SHAPES | _ARITHMETIC | {"Cast", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze"}


def infer_types(
    payload: bytes, outer_types: Mapping[str, TypeProto], wanted: Collection[str]
) -> Mapping[str, TypeProto]:
    """Infer the types of what the nodes of a graph make, as far as ONNX knows their operators.

    `payload`: the model as bytes, which take less memory than the model: inputs of static shape, nodes in
    topological order, nothing declared.
    """
    types = _inferred(payload, values=False)
    if all(name in types and static_shape(types[name]) is not None for name in wanted):
        return types
    model = ModelProto.FromString(payload)
    if not _follows_few_integers(model.graph, {**outer_types, **types}):
        return types
    return {**types, **_inferred(model.SerializeToString(), values=True)}


def _inferred(payload: bytes, *, values: bool) -> dict[str, TypeProto]:
    inferred = onnx.shape_inference.infer_shapes(payload, data_prop=values, strict_mode=False)
    return {info.name: info.type for info in inferred.graph.value_info}


def _follows_few_integers(graph: GraphProto, types: Mapping[str, TypeProto]) -> bool:
    """Let ONNX follow values through nothing but nodes that compute a few integers; say if there are any."""
    follows = False
    for node in graph.node:
        has_bodies = any(True for _ in bodies(node))
        if node.domain or not (node.op_type in _FOLLOWING or has_bodies):
            continue
        if not has_bodies and _is_of_few_integers(node, types):
            follows = True
        elif node.op_type in _ARITHMETIC:
            node.op_type = _LIKE_ARITHMETIC
        else:
            node.domain = HIDDEN
            for name in node.output:
                if name in types:
                    graph.value_info.add(name=name, type=types[name])
    return follows


def _is_of_few_integers(node: NodeProto, types: Mapping[str, TypeProto]) -> bool:
    followed = node.output if node.op_type in _OF_SHAPES else (*node.input, *node.output)
    return all(_is_few_integers(types.get(name)) for name in followed if name)


def _is_few_integers(value_type: TypeProto | None) -> bool:
    if value_type is None or value_type.tensor_type.elem_type not in _FOLLOWED:
        return False
    shape = static_shape(value_type)
    return shape is not None and is_small(shape)
