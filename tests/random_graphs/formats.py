"""Graphs that hold other types already: Casts to every float type, quantization pairs, integers."""

import numpy as np
from onnx import TensorProto, helper

from tests.random_graphs.builder import Builder, RejectedError


def existing_cast(b: Builder) -> None:
    """A part of the graph that is FP16 already."""
    x = b.find(lambda v: True, np.float16) if b.chance(2) else None
    if x is None:
        x = b.emit("Cast", [b.pick()], to=TensorProto.FLOAT16)
    for _ in range(b.rng.randrange(3)):
        x = b.emit(b.rng.choice(("Neg", "Relu", "Identity", "Abs")), [x]) if b.opset >= 13 else x
    if not b.chance(3):
        b.emit("Cast", [x], to=TensorProto.FLOAT)


def through_other_type(b: Builder) -> None:
    """There and back again through a type that nothing else here computes in."""
    target = b.rng.choice(
        (
            *(TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT16),
            *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2),
        )
    )
    if (b.opset < 13 and target == TensorProto.BFLOAT16) or (
        b.opset < 19 and target >= TensorProto.FLOAT8E4M3FN
    ):
        raise RejectedError("newer type")
    names = [b.name("low"), b.name("t")]
    nodes = [
        helper.make_node("Cast", [b.pick()], [names[0]], to=target),
        helper.make_node("Cast", [names[0]], [names[1]], to=TensorProto.FLOAT),
    ]
    b.add(nodes, names[1:])


def double(b: Builder) -> None:
    """A piece in FP64, a constant of FP64 among it."""
    x = b.emit("Cast", [b.pick()], to=TensorProto.DOUBLE)
    y = b.emit("Mul", [x, b.constant(b.rng.choice((0.5, 2.0)), np.float64)])
    b.emit("Cast", [y], to=TensorProto.FLOAT)


def cast_like(b: Builder) -> None:
    x = b.pick()
    low = b.emit("CastLike", [x, b.constant(np.zeros((), np.float16))])
    if b.chance(2):
        b.emit("CastLike", [low, b.pick()])


def quantized(b: Builder) -> None:
    """A QuantizeLinear and DequantizeLinear pair, of a tensor or per axis."""
    x = b.of_rank(2, 3)
    kind = b.rng.choice((np.int8, np.uint8))
    if b.opset >= 13 and b.chance(3):
        axis = b.rng.randrange(b[x].ndim)
        count = b[x].shape[axis]
        scale = b.constant(np.full(count, 0.0625, np.float32))
        zero, attributes = b.constant(np.zeros(count, kind)), {"axis": axis}
    else:
        scale, zero, attributes = b.constant(0.0625, np.float32), b.constant(np.zeros((), kind)), {}
    if b.opset < 10:
        raise RejectedError("no quantization yet")
    q = b.emit("QuantizeLinear", [x, scale, zero], **attributes)
    y = b.emit("DequantizeLinear", [q, scale, zero], **attributes)
    if b.chance(2):
        b.emit("MatMul", [y, b.of_shape((b[y].shape[-1], 3))])


def dynamic(b: Builder) -> None:
    """DynamicQuantizeLinear and MatMulInteger."""
    x = b.of_rank(2)
    q, scale, zero = b.emit_all("DynamicQuantizeLinear", [x], 3)
    weight = b.constant(b.numpy().integers(-50, 50, (b[x].shape[1], 3)), np.int8)
    product = b.emit("MatMulInteger", [q, weight, zero])
    b.emit("Mul", [b.emit("Cast", [product], to=1), scale], wild=True)


def positions(b: Builder) -> None:
    """Integers computed in floats: counts, positions and ids, often beyond what FP16 holds exactly."""
    start = b.rng.choice((0, 5, 2000, 4090, 30000, 70000))
    count = b.rng.choice((3, 6))
    ids = b.constant(np.arange(start, start + count), np.int64)
    x = b.emit("Cast", [ids], to=1, wild=True)
    match b.rng.randrange(5):
        case 0:
            x = b.emit("Add", [x, b.constant(1.0, np.float32)], wild=True)
            b.emit("Cast", [x], to=TensorProto.INT64)
        case 1:
            x = b.emit("Mul", [x, b.constant(2.0, np.float32)], wild=True)
            limit = b.constant(float(2 * start + count), np.float32)
            mask = b.emit("Less", [x, limit])
            b.emit("Cast", [mask], to=1)
        case 2:
            other = b.emit(
                "Unsqueeze",
                [x, b.ints(1)] if b.opset >= 13 else [x],
                axes=None if b.opset >= 13 else [1],
                wild=True,
            )
            distance = b.emit("Abs", [b.emit("Sub", [x, other], wild=True)], wild=True)
            b.emit("Exp", [b.emit("Neg", [distance])])
        case 3:
            if b.opset >= 10:
                half = b.emit("Mod", [x, b.constant(8.0, np.float32)], fmod=1, wild=True)
                b.emit("Mul", [half, b.constant(0.5, np.float32)])
        case 4:
            angle = b.emit("Mul", [x, b.constant([0.5] * count, np.float32)], wild=True)
            b.emit(b.rng.choice(("Sin", "Cos")), [angle])


def integers(b: Builder) -> None:
    """Shapes and indices computed in INT64, and turned into floats."""
    shape = b.emit("Shape", [b.of_rank(2, 3)])
    size = b.emit("Gather", [shape, b.constant(0, np.int64)], axis=0)
    total = b.emit("Mul", [size, b.constant(b.rng.choice((1, 7)), np.int64)])
    b.emit("Div", [b.pick(), b.emit("Cast", [total], to=1)])
