"""Windows: what weighs values and their squares, and is not trained."""

from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.values.sum_ops import MOVES, MOVES_AND_PARTS, WEIGHTED


def windows_of(view: GraphView) -> frozenset[str]:
    """Find the windows in which products take ``E[x^2] - E[x]^2`` and ``E[xy] - E[x]E[y]``.

    Such are a buffer of SSIM, the edges of a graph, the shares of an attentive pooling. A difference of these
    products of matrices, or convolutions, is as small as one of sums.
    """
    trained = frozenset(filter(view.is_float32, view.inputs)) - frozenset(view.data_inputs)
    factors: dict[str, frozenset[str]] = {}
    weighed: dict[str, set[str]] = {}
    for node in view.nodes:
        if node.op.label == "Mul" or view.power(node) == 2.0:
            factors[node.outputs[0]] = frozenset(view.origin(t, MOVES) for t in node.inputs)
        elif node.op in WEIGHTED:
            for tensor, other in (node.inputs[:2], node.inputs[1::-1]):
                weighed.setdefault(view.origin(tensor, MOVES_AND_PARTS), set()).add(view.origin(other, MOVES))
    return frozenset(
        tensor
        for tensor, others in weighed.items()
        if tensor not in trained and any(not others.isdisjoint(factors.get(t, ())) for t in others)
    )
