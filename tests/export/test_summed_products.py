"""Sums of products of matrices are one product, where that moves less."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import MOST_JOINED
from campo_onnx.builder.value import Value
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import rebuilt

FLOAT = int(TensorProto.FLOAT)
FLAGS = [(0, 0), (1, 0), (0, 1), (1, 1)]


def product(g: Graph, number: int, *, deep: int = 2, turned: tuple[int, int] = (1, 0)) -> Value:
    """``a @ b`` of 48 by 36 elements; `turned` are operands that lie transposed."""
    a = g.input(f"a{number}", FLOAT, (deep, 48) if turned[0] else (48, deep))
    b = g.input(f"b{number}", FLOAT, (36, deep) if turned[1] else (deep, 36))
    if turned == (0, 0):
        return g.op("MatMul", a, b)
    return g.op("Gemm", a, b, transA=turned[0], transB=turned[1])


def added(g: Graph, terms: list[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = g.op("Add", total, term)
    return total


Outputs: TypeAlias = dict[str, Value]


def written(build: Callable[[Graph], Outputs]) -> Counter[str]:
    """Count the operators of a graph, which computes what it computes where no form is chosen."""
    graphs = Graph(opset=20), Graph(opset=20, sizes_change=True)
    model, apart = (g.model(build(g), optional_inputs=frozenset()) for g in graphs)
    onnx.checker.check_model(model, full_check=True)
    random = np.random.default_rng(3)
    feeds = {
        v.name: random.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(np.float32)
        for v in model.graph.input
    }
    expected = ReferenceEvaluator(apart).run(None, feeds)
    for actual, value in zip(ReferenceEvaluator(model).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-4, atol=1e-4)
    assert not Counter(n.op_type for n in apart.graph.node)["Concat"]
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("turned", FLAGS)
def test_products_that_are_added_up_are_one(turned: tuple[int, int]) -> None:
    counts = written(
        lambda g: {"y": added(g, [product(g, i, turned=turned, deep=1 + i % 3) for i in range(5)])}
    )
    assert counts == {"Concat": 2, "MatMul" if turned == (0, 0) else "Gemm": 1}


def test_other_terms_are_added_as_before() -> None:
    def build(g: Graph) -> Outputs:
        x, y = (g.input(name, FLOAT, (48, 36)) for name in "xy")
        return {
            "sum": added(g, [product(g, 0), x, product(g, 1), product(g, 2, turned=(0, 1)), y, product(g, 3)])
        }

    assert written(build) == {"Concat": 2, "Gemm": 2, "Add": 3}


def test_sums_of_columns_follow_the_products() -> None:
    def build(g: Graph) -> Outputs:
        products = [product(g, i) for i in range(4)]
        sources = [g.source(p) for p in products]
        columns = [g.op("ReduceSum", s.inputs[0], g.integers([0]), keepdims=0) for s in sources if s]
        return {"weight": added(g, products), "bias": added(g, columns)}

    assert written(build) == {"Concat": 2, "Gemm": 1, "ReduceSum": 1}


def test_sums_of_columns_alone_stay() -> None:
    def build(g: Graph) -> Outputs:
        xs = [g.input(f"x{i}", FLOAT, (48, 36)) for i in range(4)]
        return {"y": added(g, [g.op("ReduceSum", x, g.integers([0]), keepdims=0) for x in xs])}

    assert written(build) == {"ReduceSum": 4, "Add": 3}


@pytest.mark.parametrize("deep", [20, 100])
def test_products_of_long_rows_stay(deep: int) -> None:
    """Activations of many tokens, as where layers share their weights, are larger than the products."""
    counts = written(lambda g: {"y": added(g, [product(g, i, deep=deep) for i in range(3)])})
    assert counts == {"Gemm": 3, "Add": 2}


def test_products_that_are_read_elsewhere_stay() -> None:
    def build(g: Graph, *, reads: bool) -> Outputs:
        first, second, third = (product(g, i) for i in range(3))
        return {"y": added(g, [first, second, third]), "first": g.op("Relu", first) if reads else first}

    assert written(partial(build, reads=True)) == {"Gemm": 2, "Concat": 2, "Add": 1, "Relu": 1}
    assert written(partial(build, reads=False)) == {"Gemm": 2, "Concat": 2, "Add": 1}


def test_a_sum_within_a_sum_that_is_an_output_is_computed_by_itself() -> None:
    def build(g: Graph) -> Outputs:
        half = added(g, [product(g, i) for i in range(3)])
        return {"half": half, "whole": added(g, [half, *(product(g, i) for i in range(3, 6))])}

    assert written(build) == {"Gemm": 2, "Concat": 4, "Add": 1}


@pytest.mark.parametrize("terms", [3, 2 * MOST_JOINED + 1])
def test_a_graph_that_is_built_again_stays(terms: int) -> None:
    g = Graph(opset=20)
    y = added(g, [product(g, i) for i in range(terms)])
    imported = import_model(g.model({"y": y}, optional_inputs=frozenset()))
    assert rebuilt(imported, {"Gemm": lambda *_: None}, Place.on_a_cpu()) is imported.model


def test_many_products_are_joined_by_as_many_as_a_captured_graph_may_join() -> None:
    counts = written(lambda g: {"y": added(g, [product(g, i) for i in range(2 * MOST_JOINED + 1)])})
    assert counts == {"Gemm": 3, "Concat": 4, "Add": 2}
