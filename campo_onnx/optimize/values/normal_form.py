"""A graph in fewer words, for what is told of its values: one computation is written in several ways.

Nothing of it is run or written.
"""

from collections.abc import Iterable
from dataclasses import replace

from onnx import NodeProto, TensorProto

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.fold import fold, is_small, may_fold
from campo_onnx.ops.key import OpKey, op_keys
from campo_onnx.optimize.values.sum_ops import contracted_terms

_FLOAT, _DOUBLE = int(TensorProto.FLOAT), int(TensorProto.DOUBLE)
_MUL, _SUM, _TRANSPOSE = OpKey("", "Mul"), OpKey("", "ReduceSum"), OpKey("", "Transpose")
_ADD, _RENAMED = OpKey("", "Add"), op_keys("Einsum MatMul Sum")
_FILL = OpKey("", "ConstantOfShape")


def in_normal_form(view: GraphView, protos: Iterable[NodeProto]) -> GraphView:
    """Take numbers in FP64 as numbers, fold constants, and name products and sums by what they are.

    A product of matrices without a sum is a Mul, an Einsum of one tensor a sum or a transposition, and a
    Sum of two an Add.
    """
    tensors, values = dict(view.tensors), dict(view.values)
    for name, info in view.tensors.items():
        if info.dtype == _DOUBLE:
            tensors[name] = replace(info, dtype=_FLOAT)
    for proto, node in zip(protos, view.nodes, strict=True):
        output = tensors.get(node.outputs[0]) if len(node.outputs) == 1 else None
        if output is None or output.dtype != _FLOAT or output.shape is None or not is_small(output.shape):
            continue
        if output.name in values or node.op == _FILL or not may_fold(proto):  # a fill has its range anyway
            continue
        if all(t in values for t in node.inputs):
            read = [values[t] for t in node.inputs]
            folded = fold(proto, [value.shape for value in read], read, view.opset.get(node.op.domain, 1))
            values.update((output.name, value) for value in folded if value is not None)
    nodes = tuple(_named(node, view) if node.op in _RENAMED else node for node in view.nodes)
    is_normal = tensors == view.tensors and nodes == view.nodes and len(values) == len(view.values)
    return view if is_normal else replace(view, nodes=nodes, tensors=tensors, values=values)


def _named(node: OpNode, view: GraphView) -> OpNode:
    """Name a sum of two, and a product that sums nothing or has one factor, by what it does to elements."""
    if node.op.label == "Sum":
        return replace(node, op=_ADD) if len(node.inputs) == 2 else node
    if any(t not in view.tensors for t in (*node.inputs, *node.outputs)):
        return node
    before, after = (view.tensors[t].elements for t in (node.inputs[0], node.outputs[0]))
    if len(node.inputs) == 1:
        return replace(node, op=_SUM if before is None or before != after else _TRANSPOSE)
    return replace(node, op=_MUL) if len(node.inputs) == 2 and contracted_terms(node, view) == 1 else node
