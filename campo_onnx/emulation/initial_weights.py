"""Weights among the inputs of a step, and values that layers begin to train with.

With weights of one size for all layers, signals grow or vanish from layer to layer: what a deep network makes
of them says nothing about its training.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.ops.work import WorkKind
from campo_onnx.runtime.feeds import Feeds

_MULTIPLIES = op_keys("Mul com.microsoft:GatedAdd")
_BATCH_NORM_INTERNAL = op_keys("com.microsoft:BatchNormInternal")
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_MOVES = frozenset({"Cast", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def initial_weights(weights: Feeds, view: GraphView) -> Feeds:
    """Give weights the size that layers are initialized with, from small values of either sign.

    What is summed up in a product has a standard deviation of one over the root of the number of terms; what
    multiplies each channel is near 1. The first node that computes with a weight tells which it is. Anything
    else (biases, tables, moments of an optimizer) stays as it is.
    """
    sources = {tensor: name for name in weights for tensor in moved(name, view)}
    sized: Feeds = {}
    for node in view.nodes:
        for position, tensor in enumerate(node.inputs):
            name = sources.get(tensor)
            if name is not None and name not in sized and not _is_move(node, position):
                sized[name] = _sized(weights[name], position, node, view)
    return {**weights, **sized}


def _sized(value: NDArray[Any], position: int, node: OpNode, view: GraphView) -> NDArray[Any]:
    results = next((view.tensors[t].elements for t in node.outputs if t), None)
    if not results:
        return value
    if work_of(view.signature(node.name)).kind is WorkKind.GEMM:
        terms = _terms(value, node, results, view)
        return np.asarray(value / value.dtype.type(value.std() * np.sqrt(terms)))
    is_vector = sum(size > 1 for size in value.shape) == 1
    if is_vector and results > value.size and _is_scale(position, node):
        return np.asarray(value + value.dtype.type(1.0))
    return value


def _terms(value: NDArray[Any], node: OpNode, results: int, view: GraphView) -> float:
    """Number of products that are summed up in each result; a recurrent layer has several, in turns."""
    if node.op.op_type in _RECURRENT:
        return float(value.shape[-1])
    return float(max(work_of(view.signature(node.name)).flops / (2 * results), 1.0))


def _is_scale(position: int, node: OpNode) -> bool:
    if node.op in _MULTIPLIES:
        return True
    return position == 1 and node.op in having(Trait.NORMALIZES) | _BATCH_NORM_INTERNAL


def is_weight(name: str, view: GraphView) -> bool:
    """Whether an input is a later operand of a product, or is added to or multiplies the last axis."""
    rank = len(view.shape(name) or ())
    for tensor in moved(name, view):
        for use in view.consumers.get(tensor, ()):
            node = view.node[use.node]
            op_type = node.op.op_type
            has_weights = op_type.startswith("Conv") or op_type in _RECURRENT
            if has_weights or (rank == 2 and op_type in ("Gemm", "MatMul")):
                if use.position > 0:
                    return True
            elif rank == 1 and any(_has_last_axis(t, name, view) for t in node.inputs):
                return True
    return False


def _has_last_axis(tensor: str, vector: str, view: GraphView) -> bool:
    shape = view.shape(tensor) or ()
    return len(shape) > 1 and shape[-1:] == view.shape(vector)


def moved(name: str, view: GraphView) -> set[str]:
    """An input, and what it is called after it was moved about."""
    walk = Walk([name])
    for tensor in walk:
        for use in view.consumers.get(tensor, ()):
            node = view.node[use.node]
            if _is_move(node, use.position):
                walk.add(filter(None, node.outputs))
    return walk.seen


def _is_move(node: OpNode, position: int) -> bool:
    return position == 0 and node.op.op_type in _MOVES
