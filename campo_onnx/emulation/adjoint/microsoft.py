"""Derivatives of ONNX Runtime's own operators that lowered steps have."""

from collections.abc import Mapping, Sequence

from campo_onnx.builder.compact import reshape, swap_last_two
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint.rule import Call, NoRuleError, Rule, of_shape


def _fused_matmul(g: Graph, call: Call) -> Sequence[Value]:
    a, b = call.input(0), call.input(1)
    of = call.attributes
    if min(a.rank, b.rank) < 2 or of.get("transBatchA") or of.get("transBatchB"):
        raise NoRuleError("FusedMatMul of vectors or transposed batches")
    turns_a, turns_b = bool(of.get("transA")), bool(of.get("transB"))
    gradient = call.gradient * float(of.get("alpha", 1.0))
    left, right = (swap_last_two(g, x) if turned else x for x, turned in ((a, turns_a), (b, turns_b)))
    of_left = g.op("MatMul", gradient, swap_last_two(g, right))
    of_right = g.op("MatMul", swap_last_two(g, left), gradient)
    of_a, of_b = (
        swap_last_two(g, x) if turned else x for x, turned in ((of_left, turns_a), (of_right, turns_b))
    )
    return [of_shape(g, of_a, a.shape), of_shape(g, of_b, b.shape)]


def _gated_add(g: Graph, call: Call) -> Sequence[Value]:
    y, gate, gradient = call.input(1), call.input(2), call.gradient
    return [gradient, gradient * gate, of_shape(g, gradient * y, gate.shape)]


def _post_mix(g: Graph, call: Call) -> Sequence[Value]:
    """Differentiate ``x * share + y * gate`` by rows: one stream, which is all that lowering writes."""
    x, y, gate, share = (call.input(i) for i in range(4))
    rows = x.shape[0]
    if x.rank != 2 or y.shape != x.shape or share.shape != (rows, 1, 1):
        raise NoRuleError("HyperConnectionPostMix of several streams")
    shares, gates = reshape(g, share, (rows, 1)), reshape(g, gate, (rows, gate.elements // rows))
    of_gates = of_shape(g, call.gradient * y, gates.shape)
    of_shares = of_shape(g, call.gradient * x, shares.shape)
    return [
        call.gradient * shares,
        call.gradient * gates,
        reshape(g, of_gates, gate.shape),
        reshape(g, of_shares, share.shape),
    ]


RULES: Mapping[str, Rule] = {
    "com.microsoft:FusedMatMul": _fused_matmul,
    "com.microsoft:GatedAdd": _gated_add,
    "com.microsoft:HyperConnectionPostMix": _post_mix,
}
