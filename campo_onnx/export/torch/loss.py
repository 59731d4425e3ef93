"""The loss that picks one log-probability per row."""

from campo_onnx.builder.compact import cast, elementwise, expand, full, reduce, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, table

_MEAN, _SUM = 1, 2  # torch's numbers of a loss's reduction


def _nll_loss(
    g: Graph, expected: Expected, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int
) -> tuple[Value, Value]:
    """Minus the log-probability of the target, for (n, classes) or (n, classes, positions ...)."""
    counts, index = _counts(g, x, target, weight, ignored)
    picked = g.op("GatherElements", x, index, axis=_class_axis(x))
    losses = -_mul_or_mask(g, counts, picked, weight)
    total = reduce(g, "ReduceSum", cast(g, counts, x.dtype), list(range(counts.rank)), keepdims=False)
    if reduction not in (_MEAN, _SUM):
        return reshape(g, losses, target.shape), total
    loss = reduce(g, "ReduceSum", losses, list(range(losses.rank)), keepdims=False)
    return (loss / total if reduction == _MEAN else loss), total


def _mul_or_mask(g: Graph, counts: Value, x: Value, weight: Value | None) -> Value:
    if weight is None:
        return elementwise(g, "Where", counts, x, 0)
    return counts * x


def _class_axis(x: Value) -> int:
    return 1 if x.rank > 1 else 0


def _counts(g: Graph, x: Value, target: Value, weight: Value | None, ignored: int) -> tuple[Value, Value]:
    """Say how much each target counts (bool, or its class's weight), and where to look it up."""
    axis = _class_axis(x)
    target = reshape(g, target, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    counts = elementwise(g, "Not", elementwise(g, "Equal", target, ignored))
    index = elementwise(g, "Where", counts, target, 0)
    if weight is None:
        return counts, index
    weights = g.op("Gather", weight, index, axis=0)
    return elementwise(g, "Where", counts, weights, 0), index


def _nll_loss_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, target: Value, weight: Value | None,
    reduction: int, ignored: int, total: Value,
) -> Value:  # fmt: skip
    counts, index = _counts(g, x, target, weight, ignored)
    if reduction == _MEAN:
        gradient = gradient / total
    elif reduction != _SUM:
        gradient = reshape(g, gradient, index.shape)
    share = _mul_or_mask(g, counts, -gradient, weight)
    zeros = full(g, x.shape, 0, x.dtype)
    return g.op("ScatterElements", zeros, index, expand(g, share, index.shape), axis=_class_axis(x))


TRANSLATIONS: Table = table(
    ((aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), _nll_loss),
    ((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), _nll_loss_backward),
)
