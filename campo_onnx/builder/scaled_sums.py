"""Sums whose terms are scaled by a number a row, in as few passes as the target has operators for."""

from collections.abc import Sequence

from campo_onnx.builder.compact import full, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

_LONGEST_ROW = 4096
"""Elements of a row, where its length may be chosen: hidden sizes are what the kernel is written for."""


def gated_add(g: Graph, x: Value, y: Value, gate: Value) -> Value:
    """Give ``x + y * gate`` for a gate of one number a row: of all axes but the last."""
    if g.may_use("GatedAdd", x):
        return g.op("com.microsoft:GatedAdd", x, y, gate)
    return x + y * gate


def may_mix(g: Graph, x: Value) -> bool:
    """Whether :func:`mixed` pays for tensors like `x`.

    On a CPU its kernel takes ten times as long as those that it replaces.
    """
    return g.target == "cuda" and g.may_use("HyperConnectionPostMix", x)


def mixed(g: Graph, x: Value, share: Value | float, y: Value, gate: Value) -> Value:
    """Give ``x * share + y * gate`` in one pass.

    The kernel mixes streams of a hyper-connection and adds a branch; here there is one stream.

    `share`: a number, or one for each row: for all axes but the last.
    `gate`: one for each row, or of the shape of `x` and `y`.
    """
    by_row = isinstance(share, Value) or gate.shape != x.shape
    length = x.shape[-1] if by_row else _length_of_rows(x.shape)
    rows = x.elements // length
    streams, branch = (reshape(g, v, (rows, length)) for v in (x, y))
    gates = reshape(g, gate, (rows, 1) if gate.elements == rows else (rows, 1, length))
    number = share if isinstance(share, Value) else full(g, (rows, 1, 1), share, x.dtype)
    shares = reshape(g, number, (rows, 1, 1))
    total = g.op("com.microsoft:HyperConnectionPostMix", streams, branch, gates, shares, num_branches=1)
    return reshape(g, total, x.shape)


def _length_of_rows(shape: Sequence[int]) -> int:
    length = 1
    for n in reversed(shape):
        if length > 1 and length * n > _LONGEST_ROW:
            break
        length *= n
    return length


def affine_rows(g: Graph, x: Value, scale: Value, shift: Value) -> Value:
    """Give ``x * scale + shift`` with a number a row each, in one pass.

    To a normalization by a mean of 0 and a deviation of 1 (as its epsilon), rows are channels.
    """
    length = x.shape[-1]
    count = x.elements // length
    zeros = full(g, (count,), 0, x.dtype)
    flat = reshape(g, x, (1, count, length))
    vectors = (reshape(g, scale, (count,)), reshape(g, shift, (count,)))
    return reshape(g, g.op("BatchNormalization", flat, *vectors, zeros, zeros, epsilon=1.0), x.shape)
