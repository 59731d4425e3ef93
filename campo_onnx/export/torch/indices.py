"""Ranges of whole numbers in a traced graph, as far as operations tell, and indices that operations read."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten


class Range(NamedTuple):
    """Lowest and highest number."""

    lowest: int
    highest: int

    def joined(self, other: "Range") -> "Range":
        """Give the range of what may be in either."""
        return Range(min(self.lowest, other.lowest), max(self.highest, other.highest))


MOVES = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dims),
        *(aten.expand.default, aten.permute.default, aten.slice.Tensor, aten.select.int, aten.flip.default),
        *(aten.clone.default, aten.alias.default, aten.detach.default, aten.repeat.default),
        *(aten.gather.default, aten.index_select.default, aten.index.Tensor, aten.lift_fresh_copy.default),
        aten.split_with_sizes.default,
    }
)
"""Operations whose results hold elements of their first operand, and no others."""

_PLACES: Mapping[Any, int] = {
    aten.argmax.default: 0,
    aten.argmin.default: 0,
    aten.max.dim: 1,
    aten.median.dim: 1,
    aten.min.dim: 1,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.topk.default: 1,
}
"""The result of an operation that is a place along an axis of its first operand."""


def range_of(node: Any) -> Range | None:
    """Give the range of a node's first result, or of a number; None where it is not proved."""
    if isinstance(node, bool | int):
        return Range(int(node), int(node))
    if not isinstance(node, torch.fx.Node):
        return None
    meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor) and meta.dtype == torch.bool:
        return Range(0, 1)
    if node.op == "get_attr":
        return _of_constant(getattr(node.graph.owning_module, str(node.target), None))
    if node.op != "call_function":
        return None
    source, place = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, 0)
    if not isinstance(source, torch.fx.Node):
        return None
    if _PLACES.get(source.target) == place:
        return _places(source)
    if source.target in MOVES:
        return range_of(source.args[0])
    rule = _RULES.get(source.target)
    return rule(*source.args, **source.kwargs) if rule is not None else None


def is_bounded(node: torch.fx.Node) -> bool:
    """Whether the range of an operation's result follows from those of its operands."""
    return node.target in _RULES


def _of_constant(tensor: Any) -> Range | None:
    if not isinstance(tensor, torch.Tensor) or not tensor.numel() or tensor.is_floating_point():
        return None
    return Range(int(tensor.min()), int(tensor.max()))


def _places(node: torch.fx.Node) -> Range:
    x = node.args[0].meta["val"]
    named = node.args[2] if node.target is aten.topk.default and len(node.args) > 2 else None
    axis = named if named is not None else node.args[1] if len(node.args) > 1 else None
    if node.target is aten.topk.default and named is None:
        axis = -1
    if node.target in (aten.sort.default, aten.sort.stable):
        axis = node.kwargs.get("dim", axis if isinstance(axis, int) else -1)
    size = x.numel() if axis is None or x.dim() == 0 else x.shape[axis]
    return Range(0, max(0, int(size) - 1))


def _arange(start: Any, end: Any, step: Any = 1, **_: Any) -> Range | None:
    if not all(isinstance(n, int) for n in (start, end, step)):
        return None
    numbers = range(start, end, step)
    return Range(min(numbers), max(numbers)) if numbers else Range(0, 0)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Range | None:
    inner = range_of(x)
    if isinstance(low, int) and isinstance(high, int):
        return Range(min(low, high), high)
    if inner is None:
        return None
    lowest = max(inner.lowest, low) if isinstance(low, int) else inner.lowest
    highest = max(inner.highest, lowest)
    return Range(min(lowest, high), min(highest, high)) if isinstance(high, int) else Range(lowest, highest)


def _copied(x: Any, **_: Any) -> Range | None:
    return range_of(x)


def _always(number: int) -> Callable[..., Range]:
    return lambda *_, **__: Range(number, number)


def _joined(parts: Sequence[Any], *_: Any) -> Range | None:
    total: Range | None = None
    for part in parts:
        one = range_of(part)
        if one is None:
            return None
        total = one if total is None else total.joined(one)
    return total


def _computed(function: Callable[[int, int], int]) -> Callable[..., Range | None]:
    def rule(a: Any, b: Any, *, alpha: Any = 1) -> Range | None:
        first, second = range_of(a), range_of(b)
        if first is None or second is None or not isinstance(alpha, int):
            return None
        ends = [function(x, y * alpha) for x in first for y in second]
        return Range(min(ends), max(ends))

    return rule


def _remainder(_x: Any, divisor: Any) -> Range | None:
    return Range(0, divisor - 1) if isinstance(divisor, int) and divisor > 0 else None


_RULES: Mapping[Any, Callable[..., Range | None]] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _computed(operator.add)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _computed(operator.sub)),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _computed(operator.mul)),
    **dict.fromkeys(
        (aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther), lambda _, *either: _joined(either)
    ),
    **dict.fromkeys((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), _always(0)),
    **dict.fromkeys((aten.ones.default, aten.ones_like.default), _always(1)),
    **dict.fromkeys((aten.full.default, aten.full_like.default), lambda _, number, **__: range_of(number)),
    aten._to_copy.default: _copied,
    aten.arange.start_step: _arange,
    aten.cat.default: _joined,
    aten.clamp.default: _clamp,
    aten.constant_pad_nd.default: lambda x, _widths, number=0: _joined((x, number)),
    aten.remainder.Scalar: _remainder,
    aten.scalar_tensor.default: _copied,
}


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
