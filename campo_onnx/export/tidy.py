"""What only shows when the graph is whole: who reads what, and so which pairs of nodes can be one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from campo_onnx.export.value import Made


def merged_pairs(made: Sequence[Made], outputs: frozenset[str]) -> list[Made]:
    """Merge nodes with their only reader.

    1. A reduction keeps its axes, or not, as its reader reshapes it anyway.
    2. The transpose of a product is the product of the transposes.

    Parameters
    ----------
    made
        Nodes in topological order.
    outputs
        Tensors that are read outside.
    """
    readers = Counter(v.name for node in made for v in node.inputs if v is not None)
    by_input = {node.inputs[0].name: node for node in made if node.inputs and node.inputs[0] is not None}
    merged: list[Made] = []
    dropped: set[str] = set()
    for node in made:
        if node.name in dropped:
            continue
        result = node.outputs[0].name
        reader = by_input.get(result)
        pair = None
        if reader is not None and readers[result] == 1 and result not in outputs:
            pair = _fitted_reduction(node, reader) or _turned_product(node, reader)
        if pair is not None and reader is not None:
            dropped.add(reader.name)
        merged.append(pair or node)
    return merged


def _fitted_reduction(reduction: Made, reshape: Made) -> Made | None:
    if reshape.op_type != "Reshape" or not reduction.op_type.startswith("Reduce"):
        return None
    keepdims = not reduction.attributes["keepdims"]
    if reshape.outputs[0].shape != _shape(reduction, keepdims=keepdims):
        return None
    return replace(
        reduction, outputs=reshape.outputs, attributes={**reduction.attributes, "keepdims": int(keepdims)}
    )


def _shape(reduction: Made, *, keepdims: bool) -> tuple[int, ...]:
    x, axes = reduction.inputs
    assert x is not None  # a reduction always names its input and its axes
    assert axes is not None
    reduced = {int(axis) for axis in axes.constant} if axes.constant is not None else set()
    return tuple(1 if i in reduced else n for i, n in enumerate(x.shape) if keepdims or i not in reduced)


def _turned_product(product: Made, transpose: Made) -> Made | None:
    is_product = product.op_type == "MatMul" or (product.op_type == "Gemm" and len(product.inputs) == 2)
    if transpose.op_type != "Transpose" or not is_product or product.outputs[0].rank != 2:
        return None
    a, b = product.inputs
    turned = {
        "transA": 1 - product.attributes.get("transB", 0),
        "transB": 1 - product.attributes.get("transA", 0),
    }
    attributes = {name: value for name, value in turned.items() if value}
    return replace(
        product,
        op_type="Gemm" if attributes else "MatMul",
        inputs=(b, a),
        outputs=transpose.outputs,
        attributes=attributes,
    )
