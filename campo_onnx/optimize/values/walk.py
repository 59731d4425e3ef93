"""Walks through a graph: tensors that lead to some nodes, and labels that nodes hand on."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import OpKey, op_keys

_DATA = dict.fromkeys(op_keys("Clip Div Gather GatherElements GatherND"), (0,)) | {OpKey("", "Where"): (1, 2)}
"""Inputs that values come through, where that is not all of them."""


class Labels(dict[str, str]):
    """Tensors that a walk has come to, each with the tensor that it came from."""

    def first(self, tensors: Iterable[str]) -> str:
        """The label of the first of some tensors that has one, or an empty text."""
        for tensor in tensors:
            if tensor in self:
                return self[tensor]
        return ""

    def mark(self, tensors: Iterable[str], label: str) -> None:
        """Label tensors, but for inputs that are left out."""
        self.update((t, label) for t in tensors if t)


def carried(node: OpNode) -> Iterator[str]:
    """The inputs that values come through."""
    for position in _DATA.get(node.op, range(len(node.inputs))):
        if node.inputs[position]:
            yield node.inputs[position]


def leading_to(
    view: GraphView,
    ends: Callable[[OpNode], Iterable[str]],
    through: AbstractSet[OpKey],
    *,
    counts: Callable[[str], bool] = bool,
    data: Callable[[OpNode], Iterable[str]] = carried,
) -> frozenset[str]:
    """Find tensors whose values come to the inputs that `ends` names of some node.

    They come through the inputs that `data` names, of operators in `through`; `counts` tells which count.
    """
    tensors: set[str] = set()
    for node in reversed(view.nodes):
        tensors.update(filter(counts, ends(node)))
        if node.op in through and not tensors.isdisjoint(node.outputs):
            tensors.update(filter(counts, data(node)))
    return frozenset(tensors)
