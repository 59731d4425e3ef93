"""Bodies: If, Loop and Scan, with captures of every kind."""

import numpy as np

from tests.random_graphs.builder import Builder


def _few(body: Builder, x: str) -> str:
    """Some elementwise nodes inside a body, tensors from around it among what they read."""
    for _ in range(body.rng.randrange(1, 4)):
        match body.rng.randrange(4):
            case 0:
                x = body.emit(body.rng.choice(("Neg", "Abs", "Tanh", "Relu")), [x])
            case 1:
                x = body.emit("Add", [x, body.of_shape(body[x].shape)])
            case 2:
                x = body.emit("Mul", [x, body.constant(0.5, np.float32)])
            case 3:
                x = body.emit("Cast", [body.emit("Cast", [x], to=10)], to=1)
    return x


def branch(b: Builder) -> None:
    """If: one branch computes, the other may only pass on what it captures."""
    x = b.pick()
    if b.chance(2):
        condition = b.constant(np.array(b.chance(2)), np.bool_)
    else:
        total = b.reducing("ReduceSum", b.pick(), None, keepdims=0)
        condition = b.emit("Greater", [total, b.constant(0.0, np.float32)])
    then, otherwise = b.body("then"), b.body("else")
    kept = _few(then, x)
    other = otherwise.emit("Identity", [x]) if b.chance(2) else _few(otherwise, x)
    b.emit("If", [condition], then_branch=then.graph([], [kept]), else_branch=otherwise.graph([], [other]))


def loop(b: Builder) -> None:
    """Loop with a carried tensor, captures and perhaps a tensor that is stacked."""
    x = b.pick()
    body = b.body("loop")
    iteration, condition, carried = (body.name(n) for n in ("i", "c", "v"))
    body.values |= {iteration: np.array(0), condition: np.array(True), carried: b[x]}
    result = body.emit("Mul", [_few(body, carried), body.constant(0.5, np.float32)])
    going = body.emit("Identity", [condition])
    scanned = [body.emit("Neg", [result])] if b.chance(2) else []
    graph = body.graph([iteration, condition, carried], [going, result, *scanned])
    count = b.constant(b.rng.randrange(4), np.int64) if not scanned else b.constant(2, np.int64)
    b.emit_all(
        "Loop", [count, "" if b.chance(2) else b.constant(np.array(True)), x], 1 + len(scanned), body=graph
    )


def scan(b: Builder) -> None:
    """Scan: a running sum along an axis."""
    x = b.of_rank(2, 3)
    body = b.body("scan")
    state, step = body.name("s"), body.name("e")
    body.values |= {state: b[x][0], step: b[x][0]}
    total = body.emit("Add", [state, step])
    again = body.emit("Identity", [total])
    graph = body.graph([state, step], [total, again])
    initial = b.constant(np.zeros_like(b[x][0]))
    b.emit_all("Scan", [initial, x], 2, body=graph, num_scan_inputs=1)
