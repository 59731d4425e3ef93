"""What is a sum, a square, a product of matrices: what the searches for lost sums have in common."""

import math
from collections.abc import Iterator, Mapping, Set

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.ops.values.traits import Trait

SUMS = having(Trait.SUM)
SUMS_OF_SQUARES = having(Trait.SUM_OF_SQUARES)
MOVES = having(Trait.MOVES)
SIGNS = having(Trait.SIGN)
CONTRACTIONS = having(Trait.CONTRACTION)
NORMALIZED = having(Trait.NORMALIZES)
MOVES_AND_SIGNS = MOVES | SIGNS
CARRIERS = MOVES | {OpKey("", op) for op in ("Add", "Concat", "Div", "Mul", "Neg", "Sum", "Slice", "Where")}
CARRIERS_OF_SQUARES = CARRIERS | {OpKey("", op) for op in ("Abs", "Clip", "Max", "Min", "Sub")}
ROOTS = frozenset({OpKey("", "Sqrt"), OpKey("", "Pow")})
NARROW = 1e30
"""A precision whose largest value is below this has not the exponents of FP32."""

_SCATTERS = frozenset({OpKey("", "ScatterElements"), OpKey("", "ScatterND")})
_WEIGHTED = CONTRACTIONS | {OpKey("", "Conv")}
_MANY_TERMS = 16
_DATA = {"Clip": (0,), "Div": (0,), "Gather": (0,), "GatherElements": (0,), "GatherND": (0,), "Where": (1, 2)}
"""Inputs that values come through, where that is not all of them."""


def squared(node: OpNode, view: GraphView) -> str | None:
    """The tensor whose square a node computes or sums."""
    if node.op in SUMS_OF_SQUARES:
        return node.inputs[0]
    if node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        is_power = exponent is not None and exponent.size == 1 and np.ravel(exponent)[0] >= 2
        return node.inputs[0] if is_power else None
    if node.op == OpKey("", "Mul") or (node.op in CONTRACTIONS and _is_norm(node, view)):
        if len(node.inputs) < 2:
            return None
        a, b = (origin(t, view, MOVES_AND_SIGNS) for t in node.inputs[:2])
        is_data = a in view.tensors and view.tensors[a].kind is not TensorKind.CONSTANT
        return node.inputs[0] if a == b and is_data else None
    return None


def _is_norm(node: OpNode, view: GraphView) -> bool:
    """Whether a product sums so much into so little that it is a norm, not attention."""
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return before is None or after is None or after == 1 or before >= _MANY_TERMS * after


def origin(tensor: str, view: GraphView, through: Set[OpKey] = MOVES) -> str:
    """The tensor that views of it lead back to."""
    producer = view.producer.get(tensor)
    while producer is not None and producer.op in through:
        tensor = producer.inputs[0]
        producer = view.producer.get(tensor)
    return tensor


def leading_to_sums(
    view: GraphView, ranges: Mapping[str, ValueRange], *, to_roots: bool = False
) -> frozenset[str]:
    """Tensors that a sum over many values takes in, directly or through views and sums of two.

    With `to_roots`, those that a root takes in too: of a square, and of a sum of squares by hand.
    """
    found: set[str] = set()
    carriers = CARRIERS_OF_SQUARES if to_roots else CARRIERS
    for node in reversed(view.nodes):
        if summed := summed_input(node, view):
            found.add(summed)
        elif adds_up(node, ranges):
            found.update(node.inputs[:2])
        elif to_roots and is_root(node, view):
            found.add(node.inputs[0])
        elif node.op in carriers and any(t in found for t in node.outputs):
            found.update(carried(node))
    return frozenset(found)


def carried(node: OpNode) -> Iterator[str]:
    """The inputs that values come through."""
    for position in _DATA.get(node.op.op_type, range(len(node.inputs))):
        if node.inputs[position]:
            yield node.inputs[position]


def is_root(node: OpNode, view: GraphView) -> bool:
    """Whether a node takes a root: Sqrt, or a power with a constant exponent between -1 and 1."""
    if node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        return exponent is not None and exponent.size == 1 and 0 < abs(float(np.ravel(exponent)[0])) < 1
    return node.op == OpKey("", "Sqrt")


def adds_up(node: OpNode, ranges: Mapping[str, ValueRange]) -> bool:
    """Whether a product with constants of one sign (ones, a Gaussian window) stands for a sum."""
    known = (ranges.get(t, UNKNOWN) for t in node.inputs[:2])
    return node.op in _WEIGHTED and any(not r.varies and r.lowest >= 0.0 and r.highest > 0.0 for r in known)


def summed_input(node: OpNode, view: GraphView) -> str | None:
    """What a node sums over many values; None where it is not such a sum."""
    if node.op in _SCATTERS:
        return node.inputs[2] if node.attributes.get("reduction") in ("add", b"add") else None
    is_einsum = node.op == OpKey("", "Einsum") and len(node.inputs) == 1
    return node.inputs[0] if (node.op in SUMS or is_einsum) and _is_sum(node, view) else None


def is_mean(node: OpNode) -> bool:
    """Whether a sum is divided by the number of its terms."""
    return node.op.op_type.endswith(("Mean", "Pool"))


def contracted_terms(node: OpNode, view: GraphView) -> int:
    """How many products a product of matrices adds up; 0 where a shape is unknown."""
    products = sum(g.m * g.n * g.k * g.batch for g in work_of(view.signature(node.name)).gemms[:1])
    return products // max(view.tensors[node.outputs[0]].elements or products, 1)


def _is_sum(node: OpNode, view: GraphView) -> bool:
    if node.op in (OpKey("", "AveragePool"), OpKey("", "CumSum")):
        return True
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return before is None or after is None or after < before


def terms_of(node: OpNode, view: GraphView) -> int:
    """How many values meet in one of the result; 0 where a shape is unknown."""
    if node.op == OpKey("", "CumSum"):
        shape, axis = view.shape(node.inputs[0]) or (), view.values.get(node.inputs[1])
        return shape[int(axis.reshape(-1)[0])] if shape and axis is not None else max(shape, default=0)
    if node.op in _SCATTERS:
        places = view.shape(node.inputs[1]) or (0,)  # all of them may be one and the same
        along = int(node.attributes.get("axis", 0))
        return math.prod(places[:-1]) if node.op.op_type == "ScatterND" else places[along]
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return 0 if not before or not after else before // after
