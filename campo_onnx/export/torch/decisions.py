"""Decisions of a step by its data: those that can be told without data, and those of the example's data.

A check that only raises is taken to pass if the user says so, and a number drawn between 0 and 1 is never
below 0: what layers are dropped by that have a probability of 0 stay.

Numbers that a step reads from its batch may be taken to be those of the example. A length, a flag, how much
a mask selects: what ``.item()``, ``if tensor`` and ``nonzero`` give decides which operations there are. The
step runs once on the example to read them. Where tracing meets them again, the graph goes the same way, and
has an output for each that says whether the batch would have. All of them end in a few operations, whether
Python, torch's C++ or the backward pass calls them.
"""

import ast
import itertools
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.decompositions import bincount
from campo_onnx.export.torch.origin import current_origin

_READS = (torch.Tensor.__bool__, torch.Tensor.item)
_COMPARED: dict[Any, Callable[[float], bool | None]] = {
    torch.Tensor.lt: lambda p: False if p <= 0 else True if p >= 1 else None,
    torch.Tensor.__lt__: lambda p: False if p <= 0 else True if p >= 1 else None,
    torch.Tensor.gt: lambda p: True if p < 0 else False if p >= 1 else None,
    torch.Tensor.__gt__: lambda p: True if p < 0 else False if p >= 1 else None,
}
_LOGS = frozenset({"warn", "warning", "warning_once"})

Position: TypeAlias = tuple[int, int, int, int]
"""First line, first column, last line, last column."""


class Decisions:
    """Truth values that are known without data."""

    def __init__(self) -> None:
        self._drawn: dict[int, tuple[torch.Tensor, bool | None]] = {}

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Take note of a number drawn from [0, 1), and of how it compares with a number outside."""
        if func is torch.rand:
            self._drawn[id(result)] = result, None
        elif func in _COMPARED and id(args[0]) in self._drawn and isinstance(args[1], int | float):
            self._drawn[id(result)] = result, _COMPARED[func](args[1])

    def truth_value(self, func: Any, args: Sequence[Any]) -> bool | None:
        """Give the truth value of a tensor whose data do not matter; None if they do."""
        return self._drawn[id(args[0])][1] if func in _READS and id(args[0]) in self._drawn else None


def passing(func: Any, args: Sequence[Any], frame: FrameType) -> bool | None:
    """Give the truth value that the check passes with which a frame is at.

    None where the condition is not a check: where passing it or not has other consequences than an error or a
    warning.
    """
    if frame.f_code is torch._check_tensor_all_with.__code__:
        return True
    position, tree = _positions(frame)[-1], _tree(frame.f_code.co_filename)
    if func not in _READS or args[0].dtype != torch.bool or position is None or tree is None:
        return None
    conditions = [node for node in ast.walk(tree) if isinstance(node, _CONDITIONS) and _is_at(node, position)]
    if not conditions:
        return None
    condition = conditions[-1]  # the innermost comes last
    wanted, operands = _wanted(condition), list(_operands(condition.test))
    if func is torch.Tensor.item:
        operands = [(operand, negated) for operand, negated in operands if _range(operand) == position]
    else:
        operands = _just_evaluated(frame, operands)
    negations = {negated for _, negated in operands}
    return None if wanted is None or len(negations) != 1 else wanted ^ negations.pop()


def _is_at(condition: Any, position: Position) -> bool:
    # A jump lies where the expression is that it tests, or where the whole statement is.
    return _range(condition) == position or _holds(condition.test, position)


def _operands(test: ast.expr, negated: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """Take a condition apart: what is tested in it, and whether an odd number of ``not`` stands before."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _operands(operand, not negated)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _operands(value, negated)
        case _:
            yield test, negated


_CONDITIONS = (ast.If, ast.Assert, ast.While, ast.IfExp)


def _wanted(statement: ast.If | ast.Assert | ast.While | ast.IfExp) -> bool | None:
    match statement:
        case ast.Assert():
            return True
        case ast.If(body=body) if _only_complains(body):
            return False
        case ast.If(orelse=[_, *_] as orelse) if _only_complains(orelse):
            return True
    return None


def _only_complains(statements: Sequence[ast.stmt]) -> bool:
    return isinstance(statements[-1], ast.Raise) or all(map(_is_log, statements))


def _is_log(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _LOGS
    return False


def _just_evaluated(
    frame: FrameType, operands: Sequence[tuple[ast.expr, bool]]
) -> list[tuple[ast.expr, bool]]:
    """Find the operand whose value the frame tests: the last one that the instructions so far belong to."""
    for position in reversed(_positions(frame)):
        if holding := [pair for pair in operands if position is not None and _holds(pair[0], position)]:
            return holding
    return []


def _positions(frame: FrameType) -> list[Position | None]:
    """Give where each instruction comes from, up to the one the frame is at."""
    positions = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2 + 1)
    return [
        None if None in (line, column, last, end) else (line or 0, column or 0, last or 0, end or 0)
        for line, last, column, end in positions
    ]


@lru_cache(maxsize=32)
def _tree(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


def _range(node: ast.AST) -> Position | None:
    if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None or node.end_col_offset is None:
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _holds(node: ast.AST, position: Position) -> bool:
    own = _range(node)
    return own is not None and own[:2] <= position[:2] and position[2:] <= own[2:]


aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


class Numbers(TorchDispatchMode):
    """Numbers that a step reads of its tensors, recorded or answered while the mode is active.

    `recorded` are those that it read of the example, by place in the user's code, in order; None while it
    reads them.
    """

    def __init__(self, recorded: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__()
        self.read: dict[str, list[Any]] = {}
        self.holds: dict[str, torch.Tensor] = {}
        self._recorded = recorded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _INDEXED:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        elif func in _ANSWERS:
            return _ANSWERS[func](self, *args, **kwargs)
        return func(*args, **kwargs)

    def _number(self, x: torch.Tensor) -> Any:
        value = self._next(lambda: aten._local_scalar_dense.default(x))
        if isinstance(value, bool):
            self._check((x != 0).all() == value, f"decides otherwise than {value}")
        else:
            self._check((x == value).all(), f"reads another number than {value}")
        return value

    def _equal(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        value = self._next(lambda: aten.equal.default(x, y))
        if x.shape == y.shape:
            self._check((x == y).all() == value, f"compares otherwise than {value}")
        return value

    def _rows(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Select elements by a mask that is true as often as in the example."""
        x, mask = torch.broadcast_tensors(x, mask)
        return x.flatten().index_select(0, self._in_front(mask))

    def _indices(self, x: torch.Tensor) -> torch.Tensor:
        flat = self._in_front(x != 0)
        columns = []
        for size in reversed(x.shape):
            columns.append(flat % size)
            flat = torch.div(flat, size, rounding_mode="floor")
        return torch.stack(columns[::-1], 1) if columns else flat.new_zeros((len(flat), 0))

    def _without_masks(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Replace masks by the places at which they are true."""
        plain: list[torch.Tensor | None] = []
        for index in indices:
            is_mask = index is not None and index.dtype in _MASKS
            plain += self._indices(index).unbind(1) if is_mask else [index]
        return plain

    def _unique(
        self, x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ordered = x.flatten().sort()[0]
        starts = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])
        values = ordered.index_select(0, self._in_front(starts))
        is_value = x.unsqueeze(-1) == values
        return values, (is_value * torch.arange(len(values))).sum(-1), is_value.flatten(0, -2).sum(0)

    def _counts(
        self, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
    ) -> torch.Tensor:
        return bincount(x, weights, self._counted((x.max() + 1).clamp_min(minlength)))

    def _repeated(self, repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
        ends = repeats.cumsum(0)
        count = self._counted(repeats.sum()) if output_size is None else output_size
        if output_size is not None:
            self._check(ends[-1] == count, f"repeats to another length than {count}")
        return (torch.arange(count).unsqueeze(1) >= ends).sum(1).clamp_max(len(repeats) - 1)

    def _in_front(self, mask: torch.Tensor) -> torch.Tensor:
        """Give the places at which a mask is true, in order: as many as in the example."""
        hits, count = mask.flatten(), self._counted(mask.sum())
        place = torch.where(hits, hits.long().cumsum(0) - 1, count).clamp_max(count)  # the last is for others
        places = torch.arange(len(hits), device=mask.device)
        empty = torch.zeros(count + 1, dtype=torch.int64, device=mask.device)
        return empty.scatter(0, place, places)[:count]

    def _counted(self, number: torch.Tensor) -> int:
        count = int(self._next(lambda: aten._local_scalar_dense.default(number)))
        self._check(number == count, f"selects another number of elements than {count}")
        return count

    def _next(self, read: Callable[[], Any]) -> Any:
        """Read a number of the example, or give the one that was read there."""
        place = current_origin().place
        numbers = self.read.setdefault(place, [])
        if self._recorded is None:
            numbers.append(read())
        elif len(numbers) == len(self._recorded.get(place, ())):
            raise UnsupportedModelError(
                f"{place} reads a number that the step did not read when it ran on the example",
                remedy="Compute it outside of the step, and give it as an argument.",
            )
        else:
            numbers.append(self._recorded[place][len(numbers)])
        return numbers[-1]

    def _check(self, holds: torch.Tensor, text: str) -> None:
        text = f"{current_origin().place} {text}"
        before = self.holds.get(text)
        self.holds[text] = holds if before is None else before & holds


_INDEXED = frozenset(
    {
        aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
        aten._index_put_impl_.default, aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
    }
)  # fmt: skip
_ANSWERS: Mapping[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: Numbers._number,
    aten.bincount.default: Numbers._counts,
    aten.equal.default: Numbers._equal,
    aten.masked_select.default: Numbers._rows,
    aten.nonzero.default: Numbers._indices,
    aten.repeat_interleave.Tensor: Numbers._repeated,
    aten._unique2.default: Numbers._unique,
}
