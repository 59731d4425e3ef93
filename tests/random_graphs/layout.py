"""Operators that move data: shapes, slices, gathers and scatters, sequences."""

import numpy as np
from onnx import helper

from tests.random_graphs.builder import Builder


def transpose(b: Builder) -> None:
    x = b.pick()
    b.emit("Transpose", [x], perm=b.rng.sample(range(b[x].ndim), b[x].ndim) if b.chance(1.3) else None)


def reshape(b: Builder) -> None:
    """Reshape by constants and by computed shapes, Flatten."""
    x = b.pick()
    shape = b[x].shape
    match b.rng.randrange(4):
        case 0:
            b.emit("Reshape", [x, b.ints(-1)] if b[x].size else [x, b.ints(0)])
        case 1:
            b.emit("Reshape", [x, b.ints(*shape[:1], int(np.prod(shape[1:])))] if shape else [x, b.ints(1)])
        case 2:
            other = b.pick(lambda v: v.size == b[x].size, shape)
            b.emit("Reshape", [x, b.emit("Shape", [other])])
        case 3:
            b.emit("Flatten", [x], axis=b.rng.randrange(b[x].ndim + 1))


def squeeze(b: Builder) -> None:
    x = b.pick()
    if b.chance(2):
        axis = b.rng.randrange(b[x].ndim + 1)
        b.reducing("Unsqueeze", x, [axis])
    else:
        ones = [i for i, size in enumerate(b[x].shape) if size == 1]
        b.reducing("Squeeze", x, ones[:1] or None)


def concat(b: Builder) -> None:
    """Concat of up to four tensors, and Split again."""
    x = b.of_rank(1, 2, 3)
    axis = b.rng.randrange(b[x].ndim)
    others = [b.rng.choice((x, b.of_shape(b[x].shape))) for _ in range(b.rng.randrange(3))]
    joined = b.emit("Concat", [x, *others], axis=axis)
    if b.chance(2):
        parts, size = len(others) + 1, b[x].shape[axis]
        if b.opset < 13:
            b.emit_all("Split", [joined], parts, axis=axis, split=[size] * parts)
        elif b.chance(2) or b.opset < 18:
            b.emit_all("Split", [joined, b.ints(*[size] * parts)], parts, axis=axis)
        else:
            b.emit_all("Split", [joined], parts, axis=axis, num_outputs=parts)


def slicing(b: Builder) -> None:
    x = b.of_rank(1, 2, 3)
    axis = b.rng.randrange(b[x].ndim)
    start, end = sorted(b.rng.randrange(b[x].shape[axis] + 1) for _ in range(2))
    if b.opset < 10:
        b.emit("Slice", [x], axes=[axis], starts=[start], ends=[end])
        return
    if b.chance(3):
        b.emit("Slice", [x, b.ints(end - 1), b.ints(-1000), b.ints(axis), b.ints(-1)])
    else:
        b.emit("Slice", [x, b.ints(start), b.ints(end), b.ints(axis)])


def pad(b: Builder) -> None:
    x = b.of_rank(1, 2, 3)
    pads = [b.rng.randrange(2) for _ in range(2 * b[x].ndim)]
    mode = b.rng.choice((None, "constant", "edge"))
    if b.opset < 11:
        b.emit("Pad", [x], pads=pads, mode=mode)
        return
    value = [b.constant(0.5, np.float32)] if b.chance(2) and mode != "edge" else []
    b.emit("Pad", [x, b.ints(*pads), *value], mode=mode)


def expand(b: Builder) -> None:
    """Expand and Tile, by constants and by computed shapes."""
    x = b.pick(lambda v: v.size < 200)
    shape = b[x].shape
    if b.chance(2):
        times = [b.rng.choice((1, 2)) for _ in shape]
        b.emit("Tile", [x, b.ints(*times)] if shape else [x, b.constant(np.zeros(0), np.int64)])
    elif b.chance(2):
        b.emit("Expand", [x, b.ints(b.rng.choice((1, 2)), *shape)])
    else:
        b.emit("Expand", [b.of_shape(shape[-1:]), b.emit("Shape", [x])])


def gather(b: Builder) -> None:
    """Gather, GatherElements and GatherND."""
    x = b.of_rank(1, 2, 3)
    shape = b[x].shape
    axis = b.rng.randrange(len(shape))
    match b.rng.randrange(3):
        case 0:
            picked = [b.rng.randrange(shape[axis]) for _ in range(b.rng.randrange(4))]
            index = b.constant(b.rng.choice((picked, [picked], 0)), np.int64)
            b.emit("Gather", [x, index], axis=axis)
        case 1:
            index = b.constant(b.numpy().integers(0, shape[axis], shape), np.int64)
            b.emit("GatherElements", [x, index], axis=axis)
        case 2:
            b.emit("GatherND", [x, b.constant([[b.rng.randrange(shape[0])], [0]], np.int64)])


def scatter(b: Builder) -> None:
    """Scatters as gradients of gathers have them."""
    x = b.of_rank(1, 2, 3)
    shape = b[x].shape
    if b.chance(2):
        rows = [[b.rng.randrange(shape[0])] for _ in range(2)]
        reduction = b.rng.choice((None, "add")) if b.opset >= 16 else None
        inputs = [x, b.constant(rows, np.int64), b.of_shape((2, *shape[1:]))]
        b.emit("ScatterND", inputs, reduction=reduction)
        return
    axis = b.rng.randrange(len(shape))
    index = b.constant(b.numpy().integers(0, shape[axis], shape), np.int64)
    op_type = "ScatterElements" if b.opset >= 11 else "Scatter"
    reduction = b.rng.choice((None, "add")) if b.opset >= 16 else None
    b.emit(op_type, [x, index, b.of_shape(shape)], axis=axis, reduction=reduction)


def select(b: Builder) -> None:
    """Indices and sizes that come from data: TopK, ArgMax, NonZero, Compress, OneHot, Unique, Trilu."""
    x = b.of_rank(1, 2)
    shape = b[x].shape
    match b.rng.randrange(7):
        case 0:
            count = b.rng.randrange(1, shape[-1] + 1)
            if b.opset < 10:
                b.emit_all("TopK", [x], 2, k=count)
            else:
                b.emit_all("TopK", [x, b.ints(count)], [True, b.chance(2)])
        case 1:
            index = b.emit(b.rng.choice(("ArgMax", "ArgMin")), [x], axis=0, keepdims=0)
            b.emit("Gather", [x, index])
        case 2:
            b.emit("NonZero", [x])
        case 3:
            b.emit("Compress", [x, b.constant([True, False], np.bool_)])
        case 4:
            index = b.constant([0, 1, 1], np.int64)
            b.emit("OneHot", [index, b.ints(b.rng.choice((2, 4))), b.constant([0.0, 1.0], np.float32)])
        case 5:
            b.emit_all("Unique", [x], [True, b.chance(2), b.chance(2), b.chance(2)])
        case 6:
            b.emit("Trilu", [b.of_rank(2, 3)], upper=b.rng.randrange(2))


def resize(b: Builder) -> None:
    """Resize and Upsample, with inputs left out in the middle."""
    x = b.pick(lambda v: v.ndim == 4 and 0 < v.size < 100, (1, 2, 3, 4))
    scales = b.constant([1, 1, 2, b.rng.choice((1, 2))], np.float32)
    if b.opset == 9:
        b.emit("Upsample", [x, scales])
    elif b.opset == 10:
        b.emit("Resize", [x, scales])
    elif b.chance(2):
        roi = "" if b.opset >= 13 else b.constant(np.zeros(0), np.float32)
        b.emit("Resize", [x, roi, scales], mode=b.rng.choice((None, "linear")))
    else:
        empty = "" if b.opset >= 13 else b.constant(np.zeros(0), np.float32)
        b.emit("Resize", [x, empty, empty, b.ints(*b[x].shape[:2], 5, 6)])


def depth(b: Builder) -> None:
    if b.chance(2):
        x = b.pick(lambda v: v.ndim == 4 and v.size and v.shape[1] == 4, (1, 4, 2, 3))
        b.emit("DepthToSpace", [x], blocksize=2)
    else:
        b.emit("SpaceToDepth", [b.of_shape((1, 2, 4, 6))], blocksize=2)


def sequence(b: Builder) -> None:
    """A sequence of tensors, and one taken out of it."""
    x = b.pick()
    names = [b.name("q"), b.name("t")]
    nodes = [
        helper.make_node("SequenceConstruct", [x, b.of_shape(b[x].shape)], [names[0]]),
        helper.make_node("SequenceAt", [names[0], b.constant(b.rng.randrange(2), np.int64)], [names[1]]),
    ]
    b.schema("SequenceConstruct")
    b.add(nodes, names[1:])


def fill(b: Builder) -> None:
    """Values made from shapes: ConstantOfShape, Range, EyeLike, Shape and Size of anything."""
    x = b.pick()
    shape = b.emit("Shape", [x])
    match b.rng.randrange(5):
        case 0:
            value = np.array([b.rng.choice((0.0, 1.0, 0.25))], np.float32)
            filled = b.emit("ConstantOfShape", [shape], value=helper.make_tensor("v", 1, [1], value))
            b.emit("Add", [x, filled])
        case 1:
            if b.opset >= 11:
                step = b.constant(b.rng.choice((0.5, 1.0)), np.float32)
                b.emit("Range", [b.constant(0.0, np.float32), b.constant(4.0, np.float32), step])
        case 2:
            # ONNX's inference crashes on one whose input's type it does not know.
            b.emit("EyeLike", [b.source((3, 2))], dtype=b.rng.choice((None, 1)))
        case 3:
            count = b.emit("Cast", [b.emit("Size", [x])], to=1, wild=True)
            b.emit("Div", [x, count])
        case 4:
            b.emit("Gather", [shape, b.constant(0, np.int64)]) if b[x].ndim else None
