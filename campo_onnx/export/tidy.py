"""What shows only when the graph is whole: which node consumes what, so which pairs can be one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from campo_onnx.export.value import Node


def merged_pairs(nodes: Sequence[Node], outputs: frozenset[str]) -> list[Node]:
    """Merge nodes with their only consumer.

    1. A reduction keeps its axes, or not, as its consumer reshapes it anyway.
    2. The transpose of a product is the product of the transposes.

    Parameters
    ----------
    nodes
        Nodes in topological order.
    outputs
        Tensors that are read outside.
    """
    consumers = Counter(v.name for node in nodes for v in node.inputs if v is not None)
    by_input = {node.inputs[0].name: node for node in nodes if node.inputs and node.inputs[0] is not None}
    merged: list[Node] = []
    dropped: set[str] = set()
    for node in nodes:
        if node.name in dropped:
            continue
        result = node.outputs[0].name
        consumer = by_input.get(result)
        pair = None
        if consumer is not None and consumers[result] == 1 and result not in outputs:
            pair = _fitted_reduction(node, consumer) or _turned_product(node, consumer)
        if pair is not None and consumer is not None:
            dropped.add(consumer.name)
        merged.append(pair or node)
    return merged


def _fitted_reduction(reduction: Node, reshape: Node) -> Node | None:
    if reshape.op_type != "Reshape" or not reduction.op_type.startswith("Reduce"):
        return None
    keepdims = not reduction.attributes["keepdims"]
    if reshape.outputs[0].shape != _shape(reduction, keepdims=keepdims):
        return None
    return replace(
        reduction, outputs=reshape.outputs, attributes={**reduction.attributes, "keepdims": int(keepdims)}
    )


def _shape(reduction: Node, *, keepdims: bool) -> tuple[int, ...]:
    x, axes = reduction.inputs
    assert x is not None  # a reduction always names its input and its axes
    assert axes is not None
    reduced = {int(axis) for axis in axes.constant} if axes.constant is not None else set()
    return tuple(1 if i in reduced else n for i, n in enumerate(x.shape) if keepdims or i not in reduced)


def _turned_product(product: Node, transpose: Node) -> Node | None:
    is_product = product.op_type == "MatMul" or (product.op_type == "Gemm" and len(product.inputs) == 2)
    if transpose.op_type != "Transpose" or not is_product or product.outputs[0].rank != 2:
        return None
    a, b = product.inputs
    turned = {
        "transA": 1 - product.attributes.get("transB", 0),
        "transB": 1 - product.attributes.get("transA", 0),
    }
    attributes = {name: value for name, value in turned.items() if value}
    attributes |= {name: value for name, value in product.attributes.items() if name == "alpha"}
    return replace(
        product,
        op_type="Gemm" if attributes else "MatMul",
        inputs=(b, a),
        outputs=transpose.outputs,
        attributes=attributes,
    )
