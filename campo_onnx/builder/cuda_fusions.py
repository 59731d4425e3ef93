"""Sums that ONNX Runtime's CUDA provider computes in one pass over their terms.

What shows only when the graph is whole: that nothing else reads the sums in between. On a CPU, Sum takes as
many passes as the Adds that it replaces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from campo_onnx.builder.value import Node, Value, adds_alike, readers_of

DROPOUT, BIAS_DROPOUT = "Dropout", "com.microsoft:BiasDropout"
_MOST_TERMS = 8
"""So many terms ONNX Runtime's kernel of Sum adds at once; of more it writes every partial sum."""


def sums(nodes: Sequence[Node], outputs: frozenset[str]) -> list[Node]:
    """Write chains of Add on tensors of one shape as one Sum."""
    readers = readers_of(nodes)
    terms: dict[str, tuple[Value, ...]] = {}
    replaced: dict[str, Node | None] = {}
    for node in nodes:
        if not adds_alike(node):
            continue
        parts = [(terms.get(v.name, (v,)), v) for v in node.inputs if v is not None]
        if sum(len(inner) for inner, _ in parts) > _MOST_TERMS:
            continue
        chain: tuple[Value, ...] = ()
        for inner, v in parts:
            is_inside = readers[v.name] == 1 and v.name not in outputs
            chain += inner if is_inside else (v,)
            if is_inside and len(inner) > 1:
                replaced[v.name] = None
        terms[node.outputs[0].name] = chain
        if len(chain) > 2:
            replaced[node.outputs[0].name] = replace(node, op_type="Sum", inputs=chain)
    return _with(nodes, replaced)


def bias_dropouts(
    nodes: Sequence[Node], outputs: frozenset[str], constant: Callable[[np.ndarray], Value]
) -> list[Node]:
    """Write a dropout whose result is only added to a tensor of its shape as one BiasDropout.

    The bias that it adds as well is taken from a product before it, where that has one.
    """
    readers, producer = readers_of(nodes), {v.name: node for node in nodes for v in node.outputs}
    seen: set[str] = set()
    replaced: dict[str, Node | None] = {}

    def only(value: Value | None, op_type: str) -> Node | None:
        """Find the node that makes a value, if it is of this kind and one node reads it."""
        if value is None or readers[value.name] != 1 or value.name in outputs:
            return None
        node = producer.get(value.name)
        return node if node is not None and node.op_type == op_type and node.outputs[0] is value else None

    for node in nodes:
        seen.update(v.name for v in node.inputs if v is not None)
        if not adds_alike(node):
            continue
        first, second = node.inputs
        dropout, residual = only(second, DROPOUT), first
        if dropout is None:
            dropout, residual = only(first, DROPOUT), second
        # Who reads the mask must come behind the sum.
        if dropout is None or not dropout.outputs[0].rank or any(v.name in seen for v in dropout.outputs[1:]):
            continue
        x, *choices = dropout.inputs
        assert x is not None  # a dropout always names what it drops of
        view = only(x, "Reshape")
        product = only(x if view is None else view.inputs[0], "Gemm")
        bias = None if product is None else _bias(product, x.shape[-1])
        if product is not None and bias is not None:
            replaced[product.outputs[0].name] = _without_bias(product)
        else:
            bias = constant(np.zeros(x.shape[-1], x.numpy_dtype))
        replaced[dropout.outputs[0].name] = None
        replaced[node.outputs[0].name] = replace(
            node,
            op_type=BIAS_DROPOUT,
            inputs=(x, bias, residual, *choices),
            outputs=(node.outputs[0], *dropout.outputs[1:]),
        )
    return _with(nodes, replaced)


def _bias(product: Node, width: int) -> Value | None:
    """Give what a product adds to each row, if it is that and nothing else."""
    bias = product.inputs[2] if len(product.inputs) > 2 else None
    is_whole = bias is not None and bias.shape == (width,) and product.outputs[0].shape[-1] == width
    return bias if is_whole and product.attributes.get("beta", 1.0) == 1.0 else None


def _without_bias(product: Node) -> Node:
    op_type = "Gemm" if product.attributes else "MatMul"
    return replace(product, op_type=op_type, inputs=product.inputs[:2])


def _with(nodes: Sequence[Node], replaced: Mapping[str, Node | None]) -> list[Node]:
    """Replace nodes by the name of their first output; None leaves one out."""
    replacements = (replaced.get(node.outputs[0].name, node) for node in nodes)
    return [node for node in replacements if node is not None]
