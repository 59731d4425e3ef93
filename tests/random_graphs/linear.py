"""Products, convolutions, pools and layers with state."""

import numpy as np

from tests.random_graphs.builder import Builder


def matmul(b: Builder) -> None:
    """MatMul of vectors, matrices and stacks of them."""
    x = b.of_rank(1, 2, 2, 3, 4)
    inner = b[x].shape[-1]
    shape = b.rng.choice(
        ((inner,), (inner, b.size()), (inner, b.size()), (*b[x].shape[:-2], inner, b.size()))
    )
    b.emit("MatMul", [x, b.of_shape(shape)])


def gemm(b: Builder) -> None:
    """Gemm, transposed and scaled, with a bias of any shape or none."""
    x = b.of_rank(2)
    transposed, other = b.rng.randrange(2), b.rng.randrange(2)
    rows, inner = b[x].shape[::-1] if transposed else b[x].shape
    columns = b.size()
    y = b.of_shape((columns, inner) if other else (inner, columns))
    bias = b.rng.choice(((columns,), (rows, columns), (1,), (), None))
    inputs = [x, y]
    if bias is not None or b.opset < 11:
        inputs.append(b.of_shape(bias or ()))
    scale = b.rng.choice((None, 0.5))
    b.emit("Gemm", inputs, transA=transposed or None, transB=other or None, alpha=scale, beta=scale)


def einsum(b: Builder) -> None:
    """A contraction spelled out."""
    x = b.of_rank(2)
    b.emit(
        "Einsum",
        [x, b.of_shape((b[x].shape[1], b.size()))],
        equation=b.rng.choice(("ij,jk->ik", "ij,jk->ki")),
    )


def conv(b: Builder) -> None:
    """Conv or ConvTranspose of one to three axes, with groups, strides and dilations."""
    axes = b.rng.choice((1, 2, 2, 3))
    channels = b.rng.choice((1, 2, 4))
    x = b.pick(
        lambda v: v.ndim == axes + 2 and v.size > 0 and v.shape[1] == channels and min(v.shape[2:]) >= 3,
        (b.rng.choice((1, 2)), channels, *(b.rng.choice((4, 5)) for _ in range(axes))),
    )
    group = channels if b.chance(4) else 1
    kernel = [b.rng.choice((1, 2, 3)) for _ in range(axes)]
    attributes = {
        "group": group if group > 1 or b.chance(4) else None,
        "strides": [b.rng.choice((1, 2))] * axes if b.chance(2) else None,
        "pads": [1] * (2 * axes) if b.chance(2) else None,
        "kernel_shape": kernel if b.chance(2) else None,
    }
    filters = group * b.rng.choice((1, 2))
    if b.chance(3):
        weight = b.of_shape((channels, filters // group, *kernel))
        bias = [b.of_shape((filters,))] if b.chance(2) else []
        b.emit("ConvTranspose", [x, weight, *bias], **attributes)
        return
    weight = b.of_shape((filters, channels // group, *kernel))
    bias = [b.of_shape((filters,))] if b.chance(2) else []
    if b.chance(4):
        attributes["dilations"] = [1] * axes
    b.emit("Conv", [x, weight, *bias], **attributes)


def pool(b: Builder) -> None:
    """Pools of windows and of everything, MaxPool with its indices."""
    axes = b.rng.choice((1, 2, 2))
    x = b.pick(
        lambda v: v.ndim == axes + 2 and v.size > 0 and min(v.shape[2:]) >= 2,
        (1, 2, *(b.rng.choice((4, 6)) for _ in range(axes))),
    )
    match b.rng.randrange(4):
        case 0:
            b.emit(b.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), [x])
        case 1:
            strides = [2] * axes if b.chance(2) else None
            b.emit_all("MaxPool", [x], [True, b.chance(2)], kernel_shape=[2] * axes, strides=strides)
        case 2:
            pads = [1] * (2 * axes) if b.chance(2) else None
            counts = 1 if b.chance(2) else None
            b.emit("AveragePool", [x], kernel_shape=[2] * axes, pads=pads, count_include_pad=counts)
        case 3:
            b.emit("LpPool", [x], kernel_shape=[2] * axes, p=2)


def recurrent(b: Builder) -> None:
    """RNN, GRU and LSTM of one or two directions, optional inputs and outputs left out at any position."""
    steps, batch, inputs, hidden = (b.rng.choice((1, 2, 3)) for _ in range(4))
    x = b.of_shape((steps, batch, inputs))
    op_type = b.rng.choice(("RNN", "GRU", "LSTM"))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    direction = b.rng.choice((None, "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    operands = [
        x,
        b.of_shape((ways, gates * hidden, inputs)),
        b.of_shape((ways, gates * hidden, hidden)),
        b.of_shape((ways, 2 * gates * hidden)) if b.chance(2) else "",
        b.constant([steps] * batch, np.int32) if b.chance(3) else "",
        b.of_shape((ways, batch, hidden)) if b.chance(2) else "",
    ]
    states = 2
    if op_type == "LSTM":
        states = 3
        operands.append(b.of_shape((ways, batch, hidden)) if b.chance(2) else "")
        operands.append(b.of_shape((ways, 3 * hidden)) if b.chance(3) else "")
    while not operands[-1]:
        operands.pop()
    wanted = [b.chance(2) for _ in range(states)]
    wanted[b.rng.randrange(states)] = True
    b.emit_all(op_type, operands, wanted, hidden_size=hidden, direction=direction)


def attention(b: Builder) -> None:
    """Attention of opset 23, masked or not, with shared tensors."""
    batch, heads, rows, columns, size = (
        1,
        b.rng.choice((1, 2)),
        b.size(),
        b.rng.choice((2, 3)),
        b.rng.choice((2, 4)),
    )
    query = b.of_shape((batch, heads, rows, size))
    key = b.of_shape((batch, heads, columns, size))
    value = key if b.chance(3) else b.of_shape((batch, heads, columns, size))
    mask = []
    if b.chance(2):
        mask = [
            b.of_shape((rows, columns)) if b.chance(2) else b.constant(np.ones((rows, columns)), np.bool_)
        ]
    b.emit("Attention", [query, key, value, *mask], is_causal=b.rng.choice((None, 1)))


def rotary(b: Builder) -> None:
    """RotaryEmbedding of opset 23."""
    rows, size = b.rng.choice((1, 3)), b.rng.choice((2, 4))
    x = b.of_shape((1, 2, rows, size))
    tables = [b.of_shape((1, rows, size // 2)) for _ in range(2)]
    b.emit("RotaryEmbedding", [x, *tables])
