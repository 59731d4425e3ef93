"""Weights among the inputs of a step, and values that layers begin to train with.

With weights of one size for all layers, signals grow or vanish from layer to layer: what a deep network makes
of them says nothing about its training.
"""

from collections.abc import Iterable
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


def branch_scales(names: Iterable[str], view: GraphView) -> list[str]:
    """Vectors among some inputs that multiply a branch, which is then added to what went around it."""
    return [name for name in names if any(_scales_branch(tensor, view) for tensor in moved(name, view))]


def _scales_branch(tensor: str, view: GraphView) -> bool:
    if sum(size > 1 for size in view.shape(tensor) or ()) != 1:
        return False
    scaled = [view.node[use.node] for use in view.consumers.get(tensor, ())]
    ends = {t for node in scaled if node.op in _MULTIPLIES for end in node.outputs for t in moved(end, view)}
    adding = [view.node[use.node] for t in ends for use in view.consumers.get(t, ())]
    sums = [
        node for node in adding if node.op.op_type == "Add" and len(set(map(view.shape, node.inputs))) == 1
    ]
    return any(_elements(node.outputs[0], view) > _elements(tensor, view) for node in sums)


def _elements(tensor: str, view: GraphView) -> int:
    return view.tensors[tensor].elements or 0


def is_weight(name: str, view: GraphView) -> bool:
    """Whether an input is a later operand of products alone, or is added to or multiplies the last axis.

    Data is the first operand of the layers that read it, and a later one of their gradients.
    """
    positions = operand_positions(name, view)
    if positions or len(view.shape(name) or ()) != 1:
        return bool(positions) and 0 not in positions
    uses = (use for tensor in moved(name, view) for use in view.consumers.get(tensor, ()))
    return any(_has_last_axis(t, name, view) for use in uses for t in view.node[use.node].inputs)


def operand_positions(name: str, view: GraphView) -> set[int]:
    """Positions in which convolutions, recurrent layers and products of matrices read an input."""
    is_matrix = len(view.shape(name) or ()) == 2
    return {
        use.position
        for tensor in moved(name, view)
        for use in view.consumers.get(tensor, ())
        if (op_type := view.node[use.node].op.op_type).startswith("Conv")
        or op_type in _RECURRENT
        or (is_matrix and op_type in ("Gemm", "MatMul"))
    }


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
