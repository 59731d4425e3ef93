"""Sums that are one node for CUDA, and those that must not be."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

FLOAT = int(TensorProto.FLOAT)
Build = Callable[[Graph, list[Value]], list[Value]]


def written(build: Build, target: str = "cuda") -> list[str]:
    """Operators of a graph with nine inputs of shape (2, 3), sorted."""
    g = Graph(opset=20, target=target)
    inputs = [g.input(f"x{i}", FLOAT, (2, 3)) for i in range(9)]
    outputs = {f"y{i}": value for i, value in enumerate(build(g, inputs))}
    model = g.model(outputs, optional_inputs=frozenset(f"x{i}" for i in range(9)))
    onnx.checker.check_model(model)  # in topological order
    return sorted(node.op_type for node in model.graph.node)


def total(g: Graph, values: list[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = g.op("Add", result, value)
    return result


def row(g: Graph) -> Value:
    return g.constant(np.ones(3, np.float32))


SUMS: dict[str, tuple[Build, list[str]]] = {
    "a chain": (lambda g, x: [total(g, x[:4])], ["Sum"]),
    "a tree": (lambda g, x: [g.op("Add", total(g, x[:2]), total(g, x[2:4]))], ["Sum"]),
    "two terms": (lambda g, x: [total(g, x[:2])], ["Add"]),
    "as many terms as the kernel takes": (lambda g, x: [total(g, x[:8])], ["Sum"]),
    "one more": (lambda g, x: [total(g, x)], ["Add", "Sum"]),
    "what is read outside": (lambda g, x: [(s := total(g, x[:2])), g.op("Add", s, x[2])], ["Add", "Add"]),
    "what is read twice": (lambda g, x: [g.op("Add", s := total(g, x[:2]), s)], ["Add", "Add"]),
    "a row": (lambda g, x: [g.op("Add", g.op("Add", x[0], row(g)), x[1])], ["Add", "Add"]),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums(case: str) -> None:
    build, expected = SUMS[case]
    assert written(build) == expected
    assert set(written(build, "cpu")) == {"Add"}


def dropped(g: Graph, x: Value) -> tuple[Value, ...]:
    return g.ops("Dropout", x, g.scalar(0.1, FLOAT), g.constant(np.True_), outputs=2)


def product(g: Graph, x: Value, **attributes: float) -> Value:
    return g.op("Gemm", x, g.constant(np.eye(3, dtype=np.float32)), row(g), **attributes)


def masked(g: Graph, mask: Value, x: Value) -> Value:
    return g.op("Where", mask, x, g.scalar(0, FLOAT))


def _mask_comes_first(g: Graph, x: list[Value]) -> list[Value]:
    y, mask = dropped(g, x[0])
    early = masked(g, mask, x[1])
    return [g.op("Add", g.op("Neg", early), y)]


def _mask_comes_later(g: Graph, x: list[Value]) -> list[Value]:
    y, mask = dropped(g, x[0])
    return [g.op("Add", x[1], y), masked(g, mask, x[2])]


def _read_twice(g: Graph, x: list[Value]) -> list[Value]:
    y, _ = dropped(g, x[0])
    return [g.op("Add", x[1], y), g.op("Neg", y)]


DROPOUTS: dict[str, tuple[Build, list[str]]] = {
    "with the bias of a product": (
        lambda g, x: [g.op("Add", dropped(g, product(g, x[0]))[0], x[1])],
        ["BiasDropout", "MatMul"],
    ),
    "with half the bias of a product": (
        lambda g, x: [g.op("Add", dropped(g, product(g, x[0], beta=0.5))[0], x[1])],
        ["BiasDropout", "Gemm"],
    ),
    "its mask is read behind the sum": (_mask_comes_later, ["BiasDropout", "Where"]),
    "its mask is read before the sum": (_mask_comes_first, ["Add", "Dropout", "Neg", "Where"]),
    "its result is read twice": (_read_twice, ["Add", "Dropout", "Neg"]),
}


@pytest.mark.parametrize("case", DROPOUTS)
def test_dropouts(case: str) -> None:
    build, expected = DROPOUTS[case]
    assert written(build) == expected
    assert "BiasDropout" not in written(build, "cpu")
