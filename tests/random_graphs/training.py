"""Parts of training graphs: gradients, losses, masks, norms and updates."""

import numpy as np

from tests.random_graphs.builder import Builder

LARGE_MASKS = (-1e4, -65504.0, -1e9, -3.4028234663852886e38, -np.inf)


def dense(b: Builder) -> None:
    """A layer, and its gradients: transposed products and the sum of the bias."""
    x = b.of_rank(2)
    rows, inner = b[x].shape
    columns = b.rng.choice((2, 4, 8))
    weight, bias = b.source((inner, columns)), b.source((columns,))
    hidden = b.emit("Add", [b.emit("MatMul", [x, weight]), bias])
    active = b.emit(b.rng.choice(("Relu", "Tanh", "Sigmoid")), [hidden])
    gradient = b.emit("Mul", [b.of_shape((rows, columns)), b.constant(1.0 / rows, np.float32)])
    zero = b.constant(0.0, np.float32)
    if b.chance(2):
        mask = b.emit("Cast", [b.emit("Greater", [hidden, zero])], to=1)
        gradient = b.emit("Mul", [gradient, mask])
    else:
        gradient = b.emit("Where", [b.emit("Greater", [active, zero]), gradient, zero])
    b.emit("MatMul", [b.emit("Transpose", [x], perm=[1, 0]), gradient])
    b.emit("MatMul", [gradient, b.emit("Transpose", [weight], perm=[1, 0])])
    b.reducing("ReduceSum", gradient, [0], keepdims=0)


def loss(b: Builder) -> None:
    """Cross entropy in pieces and whole, and the gradient at the logits."""
    x = b.of_rank(2)
    rows, classes = b[x].shape
    labels = b.constant(b.numpy().integers(0, classes, rows), np.int64)
    if b.opset >= 12 and b.chance(2):
        b.emit_all("SoftmaxCrossEntropyLoss", [x, labels], [True, b.chance(2)])
        return
    chances = b.emit("Softmax", [x], axis=-1 if b.opset >= 13 else 1)
    logs = b.emit("LogSoftmax", [x], axis=-1 if b.opset >= 13 else 1)
    pair = b.constant([0.0, 1.0], np.float32)
    target = b.emit("OneHot", [labels, b.ints(classes), pair])
    picked = b.reducing("ReduceSum", b.emit("Mul", [logs, target]), [1], keepdims=0)
    b.emit("Neg", [b.reducing("ReduceMean", picked, None, keepdims=0)])
    b.emit("Div", [b.emit("Sub", [chances, target]), b.constant(float(rows), np.float32)])


def masked_attention(b: Builder) -> None:
    """Scores under an additive mask whose constant may lie behind anything."""
    heads, rows, size = b.rng.choice((1, 2)), b.rng.choice((2, 4)), 4
    query, key, value = (b.of_shape((heads, rows, size)) for _ in range(3))
    scores = b.emit("MatMul", [query, b.emit("Transpose", [key], perm=[0, 2, 1])])
    scores = b.emit("Div", [scores, b.constant(2.0, np.float32)])
    kept = np.tril(np.ones((rows, rows), np.float32))
    constant = b.rng.choice(LARGE_MASKS[:4])
    large = _large(b, constant)
    if b.chance(2):
        mask = b.constant(kept)
        hidden = b.emit("Sub", [b.constant(1.0, np.float32), mask])
        scores = b.emit("Add", [scores, b.emit("Mul", [hidden, large], wild=True)], wild=True)
    else:
        scores = b.emit("Where", [b.constant(kept.astype(bool)), scores, large], wild=True)
    chances = b.emit("Softmax", [scores], axis=-1 if b.opset >= 13 else 2)
    b.emit("MatMul", [chances, value])
    if b.chance(4):
        b.emit("Neg", [scores], wild=True)


def _large(b: Builder, value: float) -> str:
    """A large constant, as exporters hide it."""
    match b.rng.randrange(5):
        case 0:
            return b.emit("Cast", [b.constant(value, np.float64)], to=1, wild=True)
        case 1:
            tensor = np.array([value], np.float32)
            from onnx import numpy_helper

            return b.emit("ConstantOfShape", [b.ints(1)], wild=True, value=numpy_helper.from_array(tensor))
        case 2:
            return b.emit("Expand", [b.constant(value, np.float32), b.ints(1, 1)], wild=True)
        case 3:
            return b.emit("Mul", [b.constant(value / 2, np.float32), b.constant(2.0, np.float32)], wild=True)
    return b.constant(value, np.float32)


def norm(b: Builder) -> None:
    """The norm of a gradient, and clipping by it."""
    gradient = b.of_rank(1, 2)
    scaled = b.emit("Mul", [gradient, b.constant(b.rng.choice((1.0, 100.0)), np.float32)], wild=True)
    squares = b.emit("Mul", [scaled, scaled], wild=True)
    total = b.reducing("ReduceSum", squares, None, keepdims=0, wild=True)
    length = b.emit("Sqrt", [total], wild=True)
    if b.chance(2):
        b.emit("Mul", [gradient, b.emit("Div", [b.constant(1.0, np.float32), length], wild=True)], wild=True)


def update(b: Builder) -> None:
    """Stochastic gradient descent or Adam on a weight that is an input."""
    gradient = b.of_rank(1, 2)
    shape = b[gradient].shape
    weight = b.input(b.data(shape))
    if b.chance(2):
        rate = b.input(np.array(0.01, np.float32)) if b.chance(2) else b.constant(0.01, np.float32)
        b.emit("Sub", [weight, b.emit("Mul", [gradient, rate], wild=True)])
        return
    moment, square = b.input(b.data(shape)), b.input(np.abs(b.data(shape)))
    decay, rest = b.constant(0.9, np.float32), b.constant(0.1, np.float32)
    moment = b.emit(
        "Add", [b.emit("Mul", [moment, decay]), b.emit("Mul", [gradient, rest], wild=True)], wild=True
    )
    squares = b.emit("Mul", [b.emit("Mul", [gradient, gradient], wild=True), rest], wild=True)
    square = b.emit("Add", [b.emit("Mul", [square, decay]), squares], wild=True)
    root = b.emit("Add", [b.emit("Sqrt", [square]), b.constant(1e-8, np.float32)])
    step = b.emit("Mul", [b.emit("Div", [moment, root], wild=True), b.constant(1e-3, np.float32)], wild=True)
    b.emit("Sub", [weight, step])


def embedding(b: Builder) -> None:
    """Rows of a table, and the gradient that adds up at them."""
    rows, size = b.rng.choice((4, 6)), b.rng.choice((2, 4))
    table = b.source((rows, size))
    ids = b.constant(b.numpy().integers(0, rows, 3), np.int64)
    b.emit("Gather", [table, ids])
    gradient = b.of_shape((3, size))
    zeros = b.emit("Sub", [table, table]) if b.chance(2) else b.constant(np.zeros((rows, size), np.float32))
    if b.opset >= 16:
        axes = b.emit("Unsqueeze", [ids, b.ints(1)])
        b.emit("ScatterND", [zeros, axes, gradient], reduction="add")


def convolution(b: Builder) -> None:
    """The gradients of a convolution as exporters write them: transposed, and the sum of the bias."""
    x = b.of_shape((2, 2, 4, 4))
    weight = b.source((3, 2, 3, 3))
    y = b.emit("Conv", [x, weight, b.source((3,))], pads=[1, 1, 1, 1])
    gradient = b.of_shape(b[y].shape)
    b.emit("ConvTranspose", [gradient, weight], pads=[1, 1, 1, 1])
    b.reducing("ReduceSum", gradient, [0, 2, 3], keepdims=0)
    swapped = [b.emit("Transpose", [t], perm=[1, 0, 2, 3]) for t in (x, gradient)]
    b.emit("Conv", swapped, pads=[1, 1, 1, 1])


def gelu(b: Builder) -> None:
    """GELU in pieces, by erf or by tanh."""
    x = b.pick()
    half, one = b.constant(0.5, np.float32), b.constant(1.0, np.float32)
    if b.chance(2):
        inner = b.emit("Erf", [b.emit("Div", [x, b.constant(1.4142135, np.float32)])])
    else:
        cube = b.emit("Pow", [x, b.constant(3.0, np.float32)])
        sum_ = b.emit("Add", [x, b.emit("Mul", [cube, b.constant(0.044715, np.float32)], wild=True)])
        inner = b.emit("Tanh", [b.emit("Mul", [sum_, b.constant(0.7978846, np.float32)])])
    b.emit("Mul", [b.emit("Mul", [x, half]), b.emit("Add", [inner, one])])


def scaled_loss(b: Builder) -> None:
    """A loss scale that is an input, multiplied in and divided out."""
    scale = b.input(np.array(b.rng.choice((128.0, 1024.0)), np.float32))
    gradient = b.emit("Mul", [b.pick(), scale], wild=True)
    b.emit("Div", [gradient, scale])


def tiny(b: Builder) -> None:
    """Constants that FP16 does not hold: a tiny epsilon that keeps a quotient finite."""
    x = b.pick()
    epsilon = b.constant(b.rng.choice((1e-5, 1e-8, 1e-12)), np.float32)
    magnitude = b.emit("Add", [b.emit("Abs", [b.emit("Sub", [x, x])]), epsilon], wild=True)
    b.emit("Div", [epsilon, magnitude])
