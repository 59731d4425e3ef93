"""Operators of com.microsoft that ONNX Runtime's CPU provider has kernels for."""

import numpy as np

from tests.random_graphs.builder import Builder, RejectedError

MICROSOFT = "com.microsoft"


def activation(b: Builder) -> None:
    op_type = b.rng.choice(("Gelu", "QuickGelu", "FastGelu", "BiasGelu"))
    if b.opset < 9:
        raise RejectedError("ONNX Runtime spells Gelu out with Erf, which came with opset 9")
    x = b.of_rank(1, 2, 3)
    bias = (
        [b.of_shape(b[x].shape[-1:])]
        if op_type == "BiasGelu" or (op_type == "FastGelu" and b.chance(2))
        else []
    )
    b.emit(op_type, [x, *bias], domain=MICROSOFT)


def fused_matmul(b: Builder) -> None:
    x = b.of_rank(2, 3)
    rows, inner = b[x].shape[-2:]
    left, right = b.rng.randrange(2), b.rng.randrange(2)
    if left:
        rows, inner = inner, rows
    other = (4, inner) if right else (inner, 4)
    y = b.of_shape((*b[x].shape[:-2], *other))
    b.emit(
        "FusedMatMul", [x, y], domain=MICROSOFT, transA=left, transB=right, alpha=b.rng.choice((None, 0.5))
    )


def fused_gemm(b: Builder) -> None:
    x = b.of_rank(2)
    y, bias = b.of_shape((b[x].shape[1], 3)), b.of_shape((3,))
    b.emit("FusedGemm", [x, y, bias], domain=MICROSOFT, activation="Relu")


def fused_conv(b: Builder) -> None:
    x = b.of_shape((1, 2, 4, 4))
    b.emit("FusedConv", [x, b.of_shape((2, 2, 3, 3)), b.of_shape((2,))], domain=MICROSOFT, activation="Relu")


def multi_head(b: Builder) -> None:
    """MultiHeadAttention, and Attention with its product of inputs inside."""
    rows, size = b.rng.choice((1, 3)), 8
    if b.chance(2):
        query, key, value = (b.of_shape((1, rows, size)) for _ in range(3))
        b.emit("MultiHeadAttention", [query, key, value], domain=MICROSOFT, num_heads=2)
    else:
        x = b.of_shape((1, rows, size))
        inputs = [x, b.of_shape((size, 3 * size)), b.of_shape((3 * size,))]
        b.emit("Attention", inputs, domain=MICROSOFT, num_heads=2)


def other(b: Builder) -> None:
    """Operators nobody lists: they must be left alone or handled right."""
    x = b.of_rank(2)
    match b.rng.randrange(4):
        case 0:
            b.emit("ExpandDims", [x, b.constant(1, np.int32)], domain=MICROSOFT)
        case 1:
            b.emit("CDist", [x, b.of_shape((3, b[x].shape[1]))], domain=MICROSOFT, metric="euclidean")
        case 2:
            bias = b.of_shape(b[x].shape[-1:])
            b.emit("FusedMatMulActivation", [x, bias], domain=MICROSOFT, activation="Relu")
        case 3:
            count = b.constant([0, 0, 1, 1], np.int64)
            b.emit("Pad", [x, count, b.constant(0.0, np.float32)], domain=MICROSOFT)
