"""Chains of small constant factors: each is harmless, what they leave together is too small."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.sum_ops import CONTRACTIONS, SUMS, is_mean, terms_of

_KEEPING = having(Trait.MOVES, Trait.SIGN, Trait.SAME_SIZE)
_PRODUCTS = CONTRACTIONS | {OpKey("", "Conv"), OpKey("", "ConvTranspose")}

_LEAST = 1e-150


class Shrunken(NamedTuple):
    """A tensor that constants have made small, and how small something of size 1 has become."""

    tensor: str
    size: float


def shrunken_values(
    view: GraphView, ranges: Mapping[str, ValueRange], forward: frozenset[str], least: float
) -> Mapping[str, Shrunken]:
    """Find nodes that read or write what constant factors have made smaller than `least`.

    Gradients are not meant: they have such factors, and a loss scale makes up for them.

    Parameters
    ----------
    view, ranges
        The graph, and what is known of its values.
    forward
        Nodes that the loss is computed by; all nodes count where there are none.
    least
        The smallest magnitude that the low precision holds well enough.

    Returns
    -------
    mapping
        The tensor, by node name.
    """
    sizes: dict[str, float] = {}
    found: dict[str, Shrunken] = {}
    for node in view.nodes:
        if forward and node.name not in forward:
            continue
        size = _size(node, view, ranges, sizes)
        if size is not None and size != 1.0:
            size = min(max(size, _LEAST), 1 / _LEAST)
            sizes.update((t, size) for t in node.outputs if t and view.is_float32(t))
        for tensor in (*node.inputs, *node.outputs):
            if tensor in sizes and sizes[tensor] < least:
                found[node.name] = Shrunken(tensor, sizes[tensor])
                break
    return found


def _size(
    node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange], sizes: Mapping[str, float]
) -> float | None:
    """The size of the result where what nothing is known of has size 1; None where the node sets its own."""

    def of(tensor: str, *, constant: float | None = None) -> float:
        if view.tensors[tensor].kind is TensorKind.CONSTANT:
            return constant if constant is not None else ranges.get(tensor, UNKNOWN).magnitude or 1.0
        return sizes.get(tensor, 1.0)

    inputs = [t for t in node.inputs if t]
    if node.op == OpKey("", "Mul"):
        return of(inputs[0]) * of(inputs[1])
    if node.op == OpKey("", "Div"):
        return of(inputs[0]) / of(inputs[1])
    alpha = abs(float(node.attributes.get("alpha", 1.0))) if node.op in _PRODUCTS else 1.0
    if not any(t in sizes for t in inputs) and node.op not in SUMS and alpha == 1.0:
        return None
    if node.op in _PRODUCTS:
        return _size_of_product(node, of(inputs[0], constant=1.0) * of(inputs[1], constant=1.0) * alpha, of)
    if node.op in SUMS and not is_mean(node):
        return of(inputs[0]) * max(terms_of(node, view), 1)
    if node.op == OpKey("", "Sqrt"):
        return float(np.sqrt(of(inputs[0])))
    if node.op in _KEEPING:
        return max((of(t) for t in inputs if view.is_float32(t)), default=None)
    return None


def _size_of_product(node: OpNode, product: float, of: Callable[[str], float]) -> float:
    """The size of a product of matrices with the bias that a Gemm or a convolution adds."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return max(product, of(bias) * abs(float(node.attributes.get("beta", 1.0)))) if bias else product
