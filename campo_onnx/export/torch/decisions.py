"""Decisions of a step by its data, where they can be told without data.

A check that only raises is taken to pass if the user says so, and a number drawn between 0 and 1 is never
below 0: what layers are dropped by that have a probability of 0 stay.
"""

import ast
import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, TypeAlias

import torch

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

    def known(self, func: Any, args: Sequence[Any]) -> bool | None:
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
