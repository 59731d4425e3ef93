"""Sorting, and searching in what is sorted."""

from typing import Any

from onnx import TensorProto

from campo_onnx.builder.compact import cast, elementwise, full, reduce, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.extremes import ordered
from campo_onnx.export.torch.operands import aten, operand, promoted
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table

_INT32, _INT64 = int(TensorProto.INT32), int(TensorProto.INT64)
_SMALL = frozenset(int(t) for t in (TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16))
"""Types that providers do not sort."""

_MOST_COMPARISONS = 1 << 26
"""Of elements with boundaries: each is a byte of memory, and eight where they are counted."""


def _topk(
    g: Graph, expected: Expected, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:  # fmt: skip
    axis, key = dim % x.rank, ordered(g, x)
    settings = {"axis": axis, "largest": int(largest), "sorted": int(sorted)}
    values, places = g.ops("TopK", key, g.integers([k]), outputs=2, **settings)
    return (values if key is x else g.op("GatherElements", x, places, axis=axis)), places


def _sort(
    g: Graph, expected: Expected, x: Value, dim: int = -1, descending: bool = False, **_: Any
) -> tuple[Value, ...]:
    # Always stable: of equal elements TopK gives that of the lower index first, whichever the direction.
    if x.rank == 0:
        return x, full(g, (), 0, _INT64)
    dtype = _INT32 if x.dtype in _SMALL else x.dtype
    values, places = _topk(g, expected, cast(g, x, dtype), x.shape[dim], dim, largest=descending)
    return cast(g, values, x.dtype), places


def _searchsorted(
    g: Graph, expected: Expected, sequence: Value, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    if sorter is not None:
        sequence = g.op("GatherElements", sequence, sorter, axis=sequence.rank - 1)
    return _places(g, expected, sequence, x, right or side == "right")


def _places(g: Graph, expected: Expected, sequence: Value, x: Any, right: bool) -> Value:
    """Count the boundaries before each element: all of them are looked at."""
    dtype = promoted(sequence, x)
    sequence, x = operand(g, sequence, dtype), operand(g, x, dtype)
    count = sequence.shape[-1]
    if x.elements * count > _MOST_COMPARISONS:
        raise UntranslatableError(
            f"{x.elements:,} elements are compared with {count:,} boundaries each",
            remedy="Search before the step, and give the places as an input.",
        )
    if count == 0:
        return full(g, expected.shape, 0, expected.dtype)
    rows = sequence
    if sequence.rank > 1:
        rows = reshape(g, sequence, (*sequence.shape[:-1], 1, count))
    column = reshape(g, x, (*x.shape, 1))
    # Not "less": NaN comes behind all of them, as torch has it.
    behind = elementwise(g, "Greater" if right else "GreaterOrEqual", rows, column)
    before = cast(g, elementwise(g, "Not", behind), expected.dtype)
    return reduce(g, "ReduceSum", before, [before.rank - 1], keepdims=False)


TRANSLATIONS: Table = table(
    (aten.topk.default, _topk),
    ((aten.sort.default, aten.sort.stable), _sort),
    (
        (aten.bucketize.Tensor, aten.bucketize.Scalar),
        lambda g, e, x, boundaries, *, right=False, **_: _places(g, e, boundaries, x, right),
    ),
    ((aten.searchsorted.Tensor, aten.searchsorted.Scalar), _searchsorted),
)
