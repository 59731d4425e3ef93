"""The gradient of padding that repeats the border."""

import numpy as np

from campo_onnx.builder.compact import concat, pad, reduce
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.layout import sliced
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, table


def _replicated_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, widths: tuple[int, ...]
) -> Value:
    for i in range(len(widths) // 2):
        axis = x.rank - 1 - i
        gradient = _of_inside(g, gradient, axis, x.shape[axis], widths[2 * i], widths[2 * i + 1])
    return gradient


def _of_inside(g: Graph, gradient: Value, axis: int, size: int, before: int, after: int) -> Value:
    """Add the gradient of what repeats the first and the last element to theirs; a negative width crops."""
    source = np.clip(np.arange(-before, size + after), 0, size - 1)
    first, last, length = int(source[0]), int(source[-1]), len(source)
    if first == last:
        inside = reduce(g, "ReduceSum", gradient, [axis], keepdims=True)
    else:
        ends = int((source == first).sum()), length - int((source == last).sum())
        head, tail = (sliced(g, gradient, axis, a, b) for a, b in ((0, ends[0]), (ends[1], length)))
        sums = [reduce(g, "ReduceSum", each, [axis], keepdims=True) for each in (head, tail)]
        inside = concat(g, [sums[0], sliced(g, gradient, axis, *ends), sums[1]], axis)
    in_front, behind = [0] * gradient.rank, [0] * gradient.rank
    in_front[axis], behind[axis] = first, size - 1 - last
    return pad(g, inside, in_front, behind)


TRANSLATIONS: Table = table(
    (
        (
            aten.replication_pad1d_backward.default,
            aten.replication_pad2d_backward.default,
            aten.replication_pad3d_backward.default,
        ),
        _replicated_backward,
    )
)
