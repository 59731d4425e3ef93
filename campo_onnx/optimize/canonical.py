"""Products and sums of a graph by what they do to elements, whichever operator writes them."""

from dataclasses import replace

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import OpKey, op_keys

_MUL, _SUM, _TRANSPOSE = OpKey("", "Mul"), OpKey("", "ReduceSum"), OpKey("", "Transpose")
_ADD, _RENAMED = OpKey("", "Add"), op_keys("Einsum MatMul Sum")


def with_canonical_ops(view: GraphView) -> GraphView:
    """Name products and sums by what they are; a graph that does so already is handed back.

    A product of matrices without a sum is a Mul, an Einsum of one tensor a sum or a transposition, and a
    Sum of two an Add.
    """
    nodes = _renamed(view)
    return view if nodes is None else replace(view, nodes=nodes)


@remembered
def _renamed(view: GraphView) -> tuple[OpNode, ...] | None:
    nodes = tuple(_named(node, view) if node.op in _RENAMED else node for node in view.nodes)
    return None if nodes == view.nodes else nodes


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


def contracted_terms(node: OpNode, view: GraphView) -> int:
    """The number of products that a product of matrices adds up; 0 where a shape is unknown."""
    products = sum(g.m * g.n * g.k * g.batch for g in work_of(view.signature(node.name)).gemms[:1])
    return products // max(view.tensors[node.outputs[0]].elements or products, 1)
