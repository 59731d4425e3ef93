"""Diagonals: read, and written to."""

from campo_onnx.builder.compact import reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.layout import sliced, written_to_slice
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, table


def _diagonal(g: Graph, expected: Expected, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    flat = _flattened(g, x, _matrices_last(x, dim1, dim2))
    count = expected.shape[-1]
    if count == 0:
        return sliced(g, flat, flat.rank - 1, 0, 0)
    first, step = _places(x.shape[dim2], offset)
    return sliced(g, flat, flat.rank - 1, first, first + (count - 1) * step + 1, step)


def _diagonal_scatter(
    g: Graph, expected: Expected, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    axes = _matrices_last(x, dim1, dim2)
    flat = _flattened(g, x, axes)
    first, step = _places(x.shape[dim2], offset)
    written = written_to_slice(g, flat, source, flat.rank - 1, first, step)
    turned = reshape(g, written, [x.shape[axis] for axis in axes])
    return transpose(g, turned, [axes.index(axis) for axis in range(x.rank)])


def _matrices_last(x: Value, dim1: int, dim2: int) -> list[int]:
    """Order the axes so that those of the matrices come last."""
    rows, columns = dim1 % x.rank, dim2 % x.rank
    return [*(axis for axis in range(x.rank) if axis not in (rows, columns)), rows, columns]


def _flattened(g: Graph, x: Value, axes: list[int]) -> Value:
    """Write the elements of each matrix in a row, in which a diagonal has a constant step."""
    turned = transpose(g, x, axes)
    return reshape(g, turned, (*turned.shape[:-2], turned.shape[-2] * turned.shape[-1]))


def _places(columns: int, offset: int) -> tuple[int, int]:
    """Give where a diagonal starts in such a row, and its step."""
    return (offset if offset >= 0 else -offset * columns), columns + 1


TRANSLATIONS: Table = table(
    ((aten.diagonal.default, aten.diagonal_copy.default), _diagonal),
    (aten.diagonal_scatter.default, _diagonal_scatter),
)
