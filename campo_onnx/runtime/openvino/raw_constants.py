"""Constants in BF16 as bytes: OpenVINO reads the bits of their other form as whole numbers, a 1 as 16,256."""

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import onnx

from campo_onnx.ir.sort import bodies, with_bodies


def with_raw_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a model in which every BF16 constant holds bytes; the model itself where all of them do.

    The model is not changed. ONNX allows the bits of BF16 in ``int32_data``, one number each.
    """
    if not any(map(_is_typed, _constants(model))):
        return model
    copy = deepcopy(model)
    for tensor in filter(_is_typed, _constants(copy)):
        tensor.raw_data = np.array(tensor.int32_data, np.uint16).astype("<u2").tobytes()
        del tensor.int32_data[:]
    return copy


def _is_typed(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.BFLOAT16 and len(tensor.int32_data) > 0


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    nodes = (*model.graph.node, *(node for function in model.functions for node in function.node))
    for graph in (model.graph, *(body for node in with_bodies(nodes) for body in bodies(node))):
        yield from graph.initializer
        yield from (constant.values for constant in graph.sparse_initializer)
    for attribute in (attribute for node in with_bodies(nodes) for attribute in node.attribute):
        yield attribute.t
        yield attribute.sparse_tensor.values
        yield from attribute.tensors
