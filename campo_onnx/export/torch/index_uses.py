"""Operations of a traced graph that look something up, and the numbers that their indices may hold."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from campo_onnx.export.torch.index_ranges import range_of

aten = torch.ops.aten

WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUse:
    """An index that an operation reads.

    The index lies from `lowest` up to, and not including, `size`.
    """

    lowest: int
    size: int
    ignored: int | None  # a number outside of that range which the operation leaves out; None for none
    operation: str


def _along_axis(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    operand, axis, index = node.args[:3]
    shape = _shape(operand)
    yield index, 0, shape[axis] if shape else 1, None


def _along_axis_from_either_end(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    for index, _, size, ignored in _along_axis(node):
        yield index, -size, size, ignored


def _embedding(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    yield node.args[1], 0, _shape(node.args[0])[0], None


def _of_all(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    size = _shape(node.args[0]).numel()
    yield node.args[1], -size, size, None


def _subscript(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    """Torch counts negative subscripts from the end, and so do the nodes that are written for them."""
    for size, index in zip(_shape(node.args[0]), subscripts(node), strict=False):
        if index is not None and index.meta["val"].dtype not in (torch.bool, torch.uint8):
            yield index, -size, size, None


def _nll_loss(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    shape = _shape(node.args[0])
    yield node.args[1], 0, shape[1 if len(shape) > 1 else 0], node.args[4]


_SUBSCRIPTS = frozenset(
    {
        *(aten.index.Tensor, aten.index_put.default),
        *(aten._unsafe_index.Tensor, aten._unsafe_index_put.default),
    }
)

_USES: Mapping[Any, Callable[[torch.fx.Node], Iterator[tuple[Any, ...]]]] = {
    **dict.fromkeys(_SUBSCRIPTS, _subscript),
    **dict.fromkeys((aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), _nll_loss),
    **dict.fromkeys(
        (
            *(aten.gather.default, aten.index_select.default, aten.index_add.default),
            *(aten.index_copy.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default),
            *(aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_reduce.two),
            aten.index_reduce.default,
        ),
        _along_axis,
    ),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _along_axis_from_either_end),
    aten.embedding.default: _embedding,
    aten.put.default: _of_all,
}


def _shape(node: Any) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def subscripts(node: torch.fx.Node) -> list[Any]:
    """Give the indices of an operation that has one for each axis; None for an axis that is kept."""
    indices: Any = node.args[1] if node.target in _SUBSCRIPTS else ()
    return list(indices)


def reads_index(node: torch.fx.Node) -> bool:
    """Whether an operation looks something up."""
    return node.target in _USES


def index_uses(
    graph: torch.fx.Graph, is_backward: Callable[[torch.fx.Node], bool]
) -> Iterator[tuple[torch.fx.Node, torch.fx.Node, IndexUse]]:
    """Find the indices that the forward pass of a graph of static sizes reads and that may lie outside.

    Each comes with the operation that reads it. A backward pass reads those of the forward pass.
    """
    for node in graph.nodes:
        if node.target not in _USES or is_backward(node):
            continue
        for index, lowest, size, ignored in _USES[node.target](node):
            inside = range_of(index)
            if inside is not None and lowest <= inside.lowest and inside.highest < size:
                continue
            if index.meta["val"].numel() == 0:  # nothing is looked up
                continue
            operation = str(node.target).removeprefix("aten.").partition(".")[0]
            yield node, index, IndexUse(lowest=lowest, size=int(size), ignored=ignored, operation=operation)
