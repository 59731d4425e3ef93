"""Matrix products inside a node: their geometry from shapes and attributes alone.

A formula takes the signature and the shapes it needs, and returns the products. Where zeros at the
ends of axes change nothing but the size of the result, a function of the same name with ``_axes``
says what part each axis of each input, and then of the result, plays in the product: ``m``, ``n``,
``k`` of a matrix product, ``i`` and ``o`` for the channels of a convolution, :data:`UNTOUCHED` for
axes that stay (batch and spatial ones).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.signature import Shape, Signature

UNTOUCHED = "."

_Axis = TypeVar("_Axis")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape:
    """A matrix product ``(m, k) @ (k, n)``; for a convolution the implicit one."""

    # m, n, k: rows and columns of the result, and the length of the sums.
    m: int
    n: int
    k: int
    batch: int = 1  # independent products of this shape: leading dimensions, or the groups of a convolution
    steps: int = 1  # products that follow one another and cannot run at once: the time steps of an RNN
    channels: tuple[int, ...] = ()  # input and output channels per group; empty for a plain product
    left_transposed: bool = False  # whether the left factor lies in memory as `(k, m)`

    @property
    def flops(self) -> float:
        """FLOPs of all batches and steps."""
        return 2.0 * self.m * self.n * self.k * self.batch * self.steps

    def is_aligned(self, multiples: Multiples) -> bool:
        """Whether tensor cores take it unpadded.

        >>> GemmShape(m=64, n=1001, k=2048).is_aligned(Multiples.of_all(8))
        False
        >>> GemmShape(m=9, n=64, k=576, channels=(64, 64)).is_aligned(Multiples.of_all(8))
        True
        """
        if self.channels:
            return all(channels % multiples.channels == 0 for channels in self.channels)
        k = 1 if multiples.repacks_left and self.left_transposed else multiples.k
        return not (self.m % multiples.m or self.n % multiples.n or self.k % k)


def matmul(signature: Signature, a: Shape, b: Shape) -> tuple[GemmShape, ...]:
    """NumPy's matmul, with the transpositions of FusedMatMul, which leave vectors alone."""
    a, b = factors(signature, a, b)
    *batch_a, m, k = a if len(a) > 1 else (1, *a)
    *batch_b, _, n = b if len(b) > 1 else (*b, 1)
    transposed = bool(signature.attribute("transA", 0))
    if math.prod(batch_b) == 1:  # one matrix for all rows: a single tall product
        return (GemmShape(m=math.prod(batch_a) * m, n=n, k=k, left_transposed=transposed),)
    batch = math.prod(_broadcast(batch_a, batch_b))
    return (GemmShape(m=m, n=n, k=k, batch=batch, left_transposed=transposed),)


def factors(
    signature: Signature, a: tuple[_Axis, ...], b: tuple[_Axis, ...]
) -> tuple[tuple[_Axis, ...], tuple[_Axis, ...]]:
    """Transpose the axes of both factors as FusedMatMul does before it multiplies."""
    return (
        _transposed(a, signature.attribute("transA", 0), signature.attribute("transBatchA", 0)),
        _transposed(b, signature.attribute("transB", 0), signature.attribute("transBatchB", 0)),
    )


def _transposed(axes: tuple[_Axis, ...], last_two: int, batch: int) -> tuple[_Axis, ...]:
    """FusedMatMul's two transpositions; `batch` moves axis 0 behind the batch axes."""
    if len(axes) < 2:
        return axes
    if batch:
        axes = (*axes[1:-1], axes[0], axes[-1])
    return (*axes[:-2], axes[-1], axes[-2]) if last_two else axes


def matmul_axes(signature: Signature) -> tuple[str, ...] | None:
    """Parts of the axes of a matmul; None where vectors or batches are moved about."""
    ranks = _ranks(signature)
    if min(ranks) < 2 or signature.attribute("transBatchA", 0) or signature.attribute("transBatchB", 0):
        return None
    a, b = map("".join, factors(signature, tuple("mk"), tuple("kn")))
    return tuple(own.rjust(rank, UNTOUCHED) for rank, own in zip(ranks, (a, b, "mn"), strict=True))


def _broadcast(a: Iterable[int], b: Iterable[int]) -> list[int]:
    left, right = list(a), list(b)
    rank = max(len(left), len(right))
    pairs = zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)
    return [y if x == 1 else x for x, y in pairs]


def gemm(signature: Signature, a: Shape, b: Shape) -> tuple[GemmShape, ...]:
    """Gemm: matrices, with transA and transB."""
    (m, k), (_, n) = factors(signature, a, b)
    return (GemmShape(m=m, n=n, k=k, left_transposed=bool(signature.attribute("transA", 0))),)


def gemm_axes(signature: Signature) -> tuple[str, ...]:
    """Parts of the axes of Gemm; axes of C that have size 1 stretch by themselves."""
    a, b = map("".join, factors(signature, tuple("mk"), tuple("kn")))
    addend = [operand.shape or () if operand is not None else () for operand in signature.inputs[2:]]
    labels = [("mn"[2 - len(shape) :], shape) for shape in addend]
    stretched = [
        "".join(label if size > 1 else UNTOUCHED for label, size in zip(own, shape, strict=True))
        for own, shape in labels
    ]
    return (a, b, *stretched, "mn")


def conv(signature: Signature, weight: Shape, output: Shape) -> tuple[GemmShape, ...]:
    """Forward: output positions x filters, summed over the receptive field."""
    group = int(signature.attribute("group", 1))
    filters = weight[0] // group
    rows = output[0] * math.prod(output[2:])
    channels = (weight[1], filters)
    return (GemmShape(m=rows, n=filters, k=math.prod(weight[1:]), batch=group, channels=channels),)


def conv_transpose(signature: Signature, data: Shape, weight: Shape) -> tuple[GemmShape, ...]:
    """Input positions x (output channels and kernel), summed over input channels.

    As many FLOPs as the Conv it is the input gradient of.
    """
    group = int(signature.attribute("group", 1))
    depth = weight[0] // group
    rows = data[0] * math.prod(data[2:])
    channels = (depth, weight[1])
    return (GemmShape(m=rows, n=math.prod(weight[1:]), k=depth, batch=group, channels=channels),)


def conv_axes(signature: Signature) -> tuple[str, ...] | None:
    """Parts of the axes of Conv; None when it is grouped."""
    return _channels(signature, ".i", "oi")


def conv_transpose_axes(signature: Signature) -> tuple[str, ...] | None:
    """Parts of the axes of ConvTranspose; None when it is grouped."""
    return _channels(signature, ".i", "io")


def _channels(signature: Signature, data: str, weight: str) -> tuple[str, ...] | None:
    if signature.attribute("group", 1) != 1:
        return None
    ranks = _ranks(signature)
    letters = (data, weight, *["o"] * (len(ranks) - 3), ".o")
    return tuple(own.ljust(rank, UNTOUCHED)[:rank] for rank, own in zip(ranks, letters, strict=True))


def _ranks(signature: Signature) -> list[int]:
    """Numbers of axes of the inputs and the first output; a missing input has none."""
    tensors = (*signature.inputs, signature.outputs[0])
    return [0 if tensor is None or tensor.shape is None else len(tensor.shape) for tensor in tensors]


def conv_grad(signature: Signature, grad: Shape, weight: Shape) -> tuple[GemmShape, ...]:
    """Gradients of Conv(X, W) that are asked for: outputs 0 (X) and 1 (W)."""
    group = int(signature.attribute("group", 1))
    filters = weight[0] // group
    rows = grad[0] * math.prod(grad[2:])
    field = math.prod(weight[1:])
    channels = (weight[1], filters)
    gradients = (
        GemmShape(m=rows, n=field, k=filters, batch=group, channels=channels),
        GemmShape(m=filters, n=field, k=rows, batch=group, channels=channels),
    )
    return tuple(gemm for gemm, output in zip(gradients, signature.outputs, strict=False) if output)


_RNN_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def rnn(signature: Signature, data: Shape, weight: Shape, recurrence: Shape) -> tuple[GemmShape, ...]:
    """Two products: all time steps by the input weights at once, then step by step the recurrence."""
    steps, batch = (data[1], data[0]) if signature.attribute("layout", 0) else data[:2]
    directions, _, width = weight
    hidden = recurrence[2]
    gates = _RNN_GATES[signature.op.op_type] * hidden
    return (
        GemmShape(m=steps * batch, n=gates, k=width, batch=directions),
        GemmShape(m=batch, n=gates, k=hidden, batch=directions, steps=steps),
    )


def einsum(signature: Signature, *shapes: Shape) -> tuple[GemmShape, ...]:
    """Pairwise from left to right; a single operand is only moved and summed: no product."""
    terms, result = einsum_terms(signature.attributes["equation"], shapes)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    gemms = []
    left = set(terms[0])
    for position, term in enumerate(terms[1:], start=1):
        right = set(term)
        needed = set(result).union(*terms[position + 1 :])
        m, n = _size(left - right, sizes), _size(right - left, sizes)
        k, batch = _size((left & right) - needed, sizes), _size(left & right & needed, sizes)
        gemms.append(GemmShape(m=m, n=n, k=k, batch=batch))
        left = (left | right) & needed
    return tuple(gemms)


def _size(labels: set[str], sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[label] for label in labels)


def einsum_terms(equation: str, shapes: tuple[Shape, ...]) -> tuple[list[str], str]:
    """Split an equation into operand and result labels; ``...`` becomes digits, from the right."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms, widest = [], ""
    for term, shape in zip(operands.split(","), shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        labels = "".join(str(i) for i in reversed(range(hidden)))
        widest = max(widest, labels, key=len)
        terms.append(term.replace("...", labels))
    if not arrow:
        joined = "".join(terms)
        return terms, widest + "".join(sorted(x for x in set(joined) - set(widest) if joined.count(x) == 1))
    return terms, result.replace("...", widest)
