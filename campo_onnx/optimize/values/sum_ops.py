"""Sums, squares and products of matrices, as the searches for lost sums tell them."""

import math
from collections.abc import Iterator

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.facts import axes_of
from campo_onnx.ops.gemms import einsum_terms
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.canonical import contracted_terms
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.walk import leading_to

SUMS = having(Trait.SUM)
SUMS_OF_SQUARES = having(Trait.SUM_OF_SQUARES)
SUMS_OF_FEW = having(Trait.ADDS)
MOVES = having(Trait.MOVES)
SCALES = having(Trait.SCALES)
PARTS = having(Trait.PART)
SHARES = having(Trait.SHARES)
CONTRACTIONS = having(Trait.CONTRACTION)
NORMALIZED = having(Trait.NORMALIZES)
MOVES_AND_SIGNS = having(Trait.MOVES, Trait.SIGN)
MOVES_AND_PARTS = MOVES | PARTS
SCALED = MOVES | SCALES | op_keys("Neg")
CARRIERS = MOVES | SCALES | op_keys("Add Concat Neg Sum Slice Where")
CARRIERS_OF_SQUARES = CARRIERS | op_keys("Abs Clip Max Min Sub")
ROOTS = op_keys("Sqrt Pow")

_SCATTERS = op_keys("ScatterElements ScatterND")
WEIGHTED = CONTRACTIONS | op_keys("Conv ConvTranspose")
_ALWAYS_SUMS = op_keys("AveragePool CumSum")
_MANY_TERMS = 16
_MANY_SHARES = 128  # from so many on, the product of two is below FP16's smallest normal number
_MOST_MOVES = 32  # that are followed back, so that the time is linear in the length of a chain


def gives_many_shares(node: OpNode, view: GraphView) -> bool:
    """Whether a node gives so many shares of a whole that products of two of them vanish."""
    shape = view.shape(node.inputs[0]) if node.op in SHARES else None
    if not shape:
        return False
    return shape[int(node.attributes.get("axis", -1))] >= _MANY_SHARES


def squared(node: OpNode, view: GraphView) -> str | None:
    """The tensor whose square a node computes or sums."""
    if node.op in SUMS_OF_SQUARES:
        return node.inputs[0]
    if node.op.label == "Pow":
        return node.inputs[0] if (view.power(node) or 0.0) >= 2.0 else None
    if node.op.label == "Mul" or (node.op in CONTRACTIONS and _is_norm(node, view)):
        if len(node.inputs) < 2:
            return None
        a, b = (view.origin(t, MOVES_AND_SIGNS) for t in node.inputs[:2])
        is_data = a in view.tensors and not view.is_constant(a)
        return node.inputs[0] if a == b and is_data else None
    return None


def _is_norm(node: OpNode, view: GraphView) -> bool:
    """Whether a product sums so much into so little that it is a norm, not attention."""
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return before is None or after is None or after == 1 or before >= _MANY_TERMS * after


def leading_to_sums(values: GraphValues, *, to_roots: bool = False) -> frozenset[str]:
    """Tensors that a sum over many values takes in, directly or through views and sums of two.

    With `to_roots`, those that a root takes in too: of a square, and of a sum of squares by hand.
    """

    def terms(node: OpNode) -> Iterator[str]:
        if summed := summed_input(node, values.view):
            yield summed
        elif adds_up(node, values):
            yield from node.inputs[:2]
        elif to_roots and is_root(node, values.view):
            yield node.inputs[0]

    return leading_to(values.view, terms, CARRIERS_OF_SQUARES if to_roots else CARRIERS)


def is_root(node: OpNode, view: GraphView) -> bool:
    """Whether a node takes a root: Sqrt, or a power with a constant exponent between -1 and 1."""
    return node.op.label == "Sqrt" or 0.0 < abs(view.power(node) or 0.0) < 1.0


def adds_up(node: OpNode, values: GraphValues) -> bool:
    """Whether a product with weights of one sign (ones, a Gaussian window) stands for a sum."""
    return node.op in WEIGHTED and any(values.range(t).weighs for t in node.inputs[:2])


def is_row_by_row(node: OpNode, view: GraphView) -> bool:
    """Whether a product of matrices sums the products of two rows, as ``einsum("bd,bd->b", x, y)`` does."""
    if node.op not in CONTRACTIONS or len(node.inputs) < 2:
        return False
    before = {view.tensors[t].elements for t in node.inputs[:2]}
    terms, after = contracted_terms(node, view), view.tensors[node.outputs[0]].elements or 0
    return terms > 1 and before == {terms * after}


def adds_products(node: OpNode, values: GraphValues) -> bool:
    """Whether a product of matrices stands for a sum: by weights of one sign, or of products of two rows."""
    return adds_up(node, values) or is_row_by_row(node, values.view)


def is_sum(node: OpNode, values: GraphValues) -> bool:
    """Whether a node sums over many values, or stands for such a sum."""
    return summed_input(node, values.view) is not None or adds_products(node, values)


def summed_input(node: OpNode, view: GraphView) -> str | None:
    """The tensor that a node sums over many values; None where it is not such a sum."""
    if node.op in _SCATTERS:
        return node.inputs[2] if node.attributes.get("reduction") in ("add", b"add") else None
    return node.inputs[0] if node.op in SUMS and _is_sum(node, view) else None


def reduced_axes(node: OpNode, view: GraphView) -> list[int]:
    """The axes that a reduction is over, counted from the first; all where it names none."""
    if "equation" in node.attributes:  # an Einsum by its other name
        return summed_axes(node, 0, view)
    rank = len(view.shape(node.inputs[0]) or ())
    own = view.values.get(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get("axes")
    if own is None or not len(own) or not rank:
        return [*range(rank)]
    return sorted({int(axis) % rank for axis in own})


def summed_axes(node: OpNode, position: int, view: GraphView) -> list[int]:
    """The axes of an input that a node adds up along, if it reduces or multiplies; none where unknown."""
    if node.op.op_type.startswith("Reduce") and "equation" not in node.attributes:
        return reduced_axes(node, view)
    shapes = [view.shape(t) for t in node.inputs]
    if None in shapes:
        return []
    if "equation" in node.attributes:
        terms, result = einsum_terms(node.attributes["equation"], tuple(s for s in shapes if s is not None))
        return [axis for axis, label in enumerate(terms[position]) if label not in result]
    if axes := axes_of(view.signature(node.name)):
        return [axis for axis, part in enumerate(axes[position]) if part == "k"]
    rank = len(shapes[position] or ())
    return [rank - 1 if position == 0 or rank == 1 else rank - 2]  # a product with a vector


def axes_before(tensor: str, axes: list[int], view: GraphView) -> tuple[tuple[int, ...], list[int]]:
    """The shape of a tensor before it was moved and scaled, and which axes of it some of its own were."""
    producer = view.producer.get(tensor)
    for _ in range(_MOST_MOVES):
        if producer is None or producer.op not in SCALED:
            break
        after = view.shape(tensor)
        own = producer.inputs[:1] if producer.op in MOVES else producer.inputs
        tensor_before = next((t for t in own if t in view.producer and view.shape(t) == after), own[0])
        before = view.shape(tensor_before)
        if before is None or after is None or math.prod(before) != math.prod(after):
            break
        if producer.op.label == "Transpose":
            order = producer.attributes.get("perm", range(len(before))[::-1])
            axes = [int(order[axis]) for axis in axes]
        else:
            axes = [a for a in range(len(before)) if any(_overlap(before, a, after, b) for b in axes)]
        tensor, producer = tensor_before, view.producer.get(tensor_before)
    return view.shape(tensor) or (), axes


def _overlap(one: tuple[int, ...], axis: int, other: tuple[int, ...], its: int) -> bool:
    """Whether an axis of one of two shapes of the same elements became part of an axis of the other."""
    step, step_of_other = math.prod(one[axis + 1 :]), math.prod(other[its + 1 :])
    return step < step_of_other * other[its] and step_of_other < step * one[axis]


def is_mean(node: OpNode) -> bool:
    """Whether a sum is divided by the number of its terms."""
    return node.op.op_type.endswith(("Mean", "Pool"))


def _is_sum(node: OpNode, view: GraphView) -> bool:
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return node.op in _ALWAYS_SUMS or before is None or after is None or after < before


def terms_of(node: OpNode, view: GraphView) -> int:
    """The number of values that meet in one of the result; 0 where a shape is unknown."""
    if node.op.label == "CumSum":
        shape, axis = view.shape(node.inputs[0]) or (), view.values.get(node.inputs[1])
        return shape[int(axis.reshape(-1)[0])] if shape and axis is not None else max(shape, default=0)
    if node.op in _SCATTERS:
        places = view.shape(node.inputs[1]) or (0,)  # all of them may be one and the same
        along = int(node.attributes.get("axis", 0))
        return math.prod(places[:-1]) if node.op.op_type == "ScatterND" else places[along]
    before, after = view.tensors[node.inputs[0]].elements, view.tensors[node.outputs[0]].elements
    return 0 if not before or not after else before // after
