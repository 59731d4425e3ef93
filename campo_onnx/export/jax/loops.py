"""Parts of an unrolled loop and of a choice of functions besides their bodies.

A loop needs the row that each turn reads, and a stack of what they give.
"""

from collections.abc import Sequence

from campo_onnx.builder.compact import concat, crop, elementwise, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import Expected, Table, table

ROW, STACK, CHOICE = "row of a loop", "rows of a loop", "choice of a result"
"""Kinds of these operations; no primitives of JAX."""

MOST_OPERATIONS = 20_000
"""Operations that a loop may become."""


def _row(g: Graph, expected: Expected, x: Value, *, turn: int) -> Value:
    starts, ends = [0] * x.rank, list(x.shape)
    starts[0], ends[0] = turn, turn + 1
    return reshape(g, crop(g, x, starts, ends), expected.shape)


def _stack(g: Graph, expected: Expected, *rows: Value) -> Value:
    parts: Sequence[Value] = [reshape(g, row, (1, *row.shape)) for row in rows]
    return concat(g, parts, 0)


def _choice(g: Graph, expected: Expected, which: Value, *cases: Value) -> Value:
    """Choose by number; one below the first means that, one above the last likewise."""
    chosen = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        is_it = which <= number
        chosen = elementwise(g, "Where", is_it, cases[number], chosen)
    return chosen


TRANSLATIONS: Table = table((ROW, _row), (STACK, _stack), (CHOICE, _choice))
