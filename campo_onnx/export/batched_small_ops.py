"""The same small computation on many vectors, done at once: running statistics, updates of biases.

What each takes by itself is a launch and hardly any work. Joined, they take as many launches as one of them:
of 391 parameters of BERT-large 246 are vectors, and AdamW takes 18 nodes for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from campo_onnx.builder.compact import reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import MOST_JOINED
from campo_onnx.builder.value import Value

_JOINED = frozenset({"Add", "Div", "Mul", "Sqrt", "Sub", "Where"})
_DEEPEST = 12  # operators above each other in an update; what is below is the network's own
_FEWEST = 3  # joining and splitting takes as many launches as this saves at least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """An element-wise computation: an operator on trees, or a leaf, maybe one number for all elements."""

    op_type: str = ""
    operands: tuple["_Tree", ...] = ()
    leaf: Value | None = None
    is_number: bool = False

    @property
    def key(self) -> "_Key":
        """Common form of trees that can be computed together."""
        if self.leaf is None:
            return (self.op_type, *(tree.key for tree in self.operands))
        if self.leaf.constant is not None:
            return ("constant", self.leaf.dtype)
        return ("number", self.leaf.name) if self.is_number else ("tensor", self.leaf.dtype)


_Key: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class _Group:
    names: list[str] = field(default_factory=list)
    trees: list[_Tree] = field(default_factory=list)


def side_by_side(g: Graph, outputs: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    """Compute outputs together that are computed alike."""
    groups: dict[_Key, _Group] = {}
    for name in names:
        tree = _tree(g, outputs[name], outputs[name].shape, _DEEPEST)
        # Of a number by itself a Split gives a vector, and a Reshape that makes an output is a copy.
        if tree.leaf is None and outputs[name].rank == 1:
            group = groups.setdefault((outputs[name].dtype, tree.key), _Group())
            group.names.append(name)
            group.trees.append(tree)
    results = dict(outputs)
    for group in groups.values():
        for first in range(0, len(group.names), MOST_JOINED):
            names, trees = group.names[first : first + MOST_JOINED], group.trees[first : first + MOST_JOINED]
            sizes = [outputs[name].elements for name in names]
            if len(sizes) < _FEWEST:
                continue
            with g.within("side_by_side"):
                joined = _joined(g, trees, sizes)
                parts = g.ops("Split", joined, g.integers(sizes), outputs=len(sizes), axis=0)
                for name, part in zip(names, parts, strict=True):
                    results[name] = reshape(g, part, outputs[name].shape)
    return results


def _tree(g: Graph, value: Value, shape: tuple[int, ...], depth: int) -> _Tree:
    if value.shape != shape:
        return _Tree(leaf=value, is_number=True)
    producer = g.source(value)
    if producer is None or producer.op_type not in _JOINED or not depth:
        return _Tree(leaf=value)
    operands = [x for x in producer.inputs if x is not None]
    if any(x.shape != shape and x.elements != 1 for x in operands):
        return _Tree(leaf=value)
    return _Tree(op_type=producer.op_type, operands=tuple(_tree(g, x, shape, depth - 1) for x in operands))


def _joined(g: Graph, trees: Sequence[_Tree], sizes: Sequence[int]) -> Value:
    first = trees[0]
    if first.leaf is None:
        operands = zip(*(tree.operands for tree in trees), strict=True)
        return g.op(first.op_type, *(_joined(g, alike, sizes) for alike in operands))
    leaves = [tree.leaf for tree in trees if tree.leaf is not None]
    if first.leaf.constant is not None:
        return _joined_constants(g, leaves, sizes)
    if first.is_number:
        return first.leaf
    return _cut_whole(g, leaves) or g.op("Concat", *leaves, axis=0)


def _cut_whole(g: Graph, leaves: Sequence[Value]) -> Value | None:
    """Give what the tensors are all parts of, in this order."""
    cut = g.source(leaves[0])
    if cut is None or cut.op_type != "Split":
        return None
    is_whole = [part.name for part in cut.outputs] == [leaf.name for leaf in leaves]
    return cut.inputs[0] if is_whole else None


def _joined_constants(g: Graph, leaves: Sequence[Value], sizes: Sequence[int]) -> Value:
    values = [np.ravel(leaf.constant) for leaf in leaves if leaf.constant is not None]
    if all(value.size == 1 and value == values[0] for value in values):
        return g.constant(values[0].reshape(()))
    pairs = zip(values, sizes, strict=True)
    return g.constant(np.concatenate([np.broadcast_to(value, (size,)) for value, size in pairs]))
