"""Chains of small constant factors: each is harmless, what they leave together is too small."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import CONTRACTIONS, SUMS, is_mean, terms_of

_KEEPING = having(Trait.MOVES, Trait.SIGN, Trait.SAME_SIZE)
_PRODUCTS = CONTRACTIONS | op_keys("Conv ConvTranspose")

_LEAST = 1e-150
_SHARE_OF_NORMAL = 0.25
"""Size of something of size 1, in smallest normal numbers, below which its smaller elements are lost."""


class Shrunken(NamedTuple):
    """A tensor that constants have made small, and how small something of size 1 has become."""

    tensor: str
    size: float


def shrunken_values(values: GraphValues) -> Mapping[str, Shrunken]:
    """Find nodes that read or write what constant factors have made smaller than the low precision holds.

    Gradients are not meant: they have such factors, and a loss scale makes up for them.
    """
    sizes: dict[str, float] = {}
    nodes: dict[str, Shrunken] = {}
    least = values.low.smallest_normal * _SHARE_OF_NORMAL
    for node in values.forward_nodes:
        size = _size(node, values, sizes)
        if size is not None and size != 1.0:
            size = min(max(size, _LEAST), 1 / _LEAST)
            sizes.update((t, size) for t in node.outputs if t and values.view.is_float32(t))
        small = (t for t in (*node.inputs, *node.outputs) if t in sizes and sizes[t] < least)
        if tensor := next(small, ""):
            nodes[node.name] = Shrunken(tensor, sizes[tensor])
    return nodes


def _size(node: OpNode, values: GraphValues, sizes: Mapping[str, float]) -> float | None:
    """The size of a result of inputs of size 1, but for those in `sizes`; None where a node sets its own."""
    view = values.view

    def of(tensor: str, *, constant: float | None = None) -> float:
        if view.is_constant(tensor):
            return constant if constant is not None else values.range(tensor).magnitude or 1.0
        return sizes.get(tensor, 1.0)

    inputs = [t for t in node.inputs if t]
    if node.op.label == "Mul":
        return of(inputs[0]) * of(inputs[1])
    if node.op.label == "Div":
        return of(inputs[0]) / of(inputs[1])
    alpha = abs(float(node.attributes.get("alpha", 1.0))) if node.op in _PRODUCTS else 1.0
    if not any(t in sizes for t in inputs) and node.op not in SUMS and alpha == 1.0:
        return None
    if node.op in _PRODUCTS:
        product = of(inputs[0], constant=1.0) * of(inputs[1], constant=1.0) * alpha
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        return max(product, of(bias) * abs(float(node.attributes.get("beta", 1.0)))) if bias else product
    if node.op in SUMS and not is_mean(node):
        return of(inputs[0]) * max(terms_of(node, view), 1)
    if node.op.label == "Sqrt":
        return math.sqrt(of(inputs[0]))
    if node.op in _KEEPING:
        return max((of(t) for t in inputs if view.is_float32(t)), default=None)
    return None
