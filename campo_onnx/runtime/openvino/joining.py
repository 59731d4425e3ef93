"""Graphs at which OpenVINO's pass that joins nodes crashes, with the process."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import onnx

from campo_onnx.ir.walk import Walk

_ENDS = frozenset(
    {"MatMul", "Gemm", "FusedMatMul", "Conv", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
    | {"Concat", "Split", "Slice", "Gather"}
)
"""Operators that the pass joins nothing through."""

_HARMLESS = 1


def crashes_joining(graph: onnx.GraphProto) -> bool:
    """Say whether several products of attention are combined, element by element, with another tensor.

    Residual blocks of attention with one head and no product behind it do that. The process ends while
    OpenVINO 2026.4 compiles two of some kinds, three of others; without the pass it compiles them.
    """
    constants = {constant.name for constant in graph.initializer}
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in set(node.input):
            readers[name].append(node)
    weights: set[str] = set()
    for node in graph.node:
        if node.op_type == "Softmax" or (node.op_type == "Cast" and node.input[0] in weights):
            weights.update(node.output)
    products = (
        node.output[0] for node in graph.node if node.op_type == "MatMul" and node.input[0] in weights
    )
    return sum(_is_combined(product, readers, constants) for product in products) > _HARMLESS


def _is_combined(
    product: str, readers: Mapping[str, Sequence[onnx.NodeProto]], constants: Iterable[str]
) -> bool:
    walk = Walk([product])
    for tensor in walk:
        for node in readers.get(tensor, ()):
            if node.op_type in _ENDS:
                continue
            if len({*node.input} - {"", *constants}) > 1:
                return True
            walk.add(node.output)
    return False
