"""Outputs end in the node that computes them: a Reshape that makes one would be a copy."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from campo_onnx.builder.compact import reduce, reshape, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

FLOAT = int(TensorProto.FLOAT)


def summed(g: Graph, x: Value, *, keepdims: bool = False) -> Value:
    return reduce(g, "ReduceSum", x, [0], keepdims=keepdims)


CASES: dict[str, tuple[Callable[[Graph, Value], Value], list[str]]] = {
    "a sum": (lambda g, x: reshape(g, summed(g, x), (3, 4, 1, 1)), ["Reshape", "ReduceSum"]),
    "a scaled sum": (
        lambda g, x: reshape(g, scaled(g, summed(g, x), 0.5), (12,)),
        ["Reshape", "ReduceSum", "Mul"],
    ),
    "a sum that keeps its axes": (
        lambda g, x: reshape(g, scaled(g, summed(g, x, keepdims=True), 0.5), (3, 4)),
        ["ReduceSum", "Mul"],
    ),
    "a sum over the last axis": (
        lambda g, x: reshape(g, reduce(g, "ReduceSum", x, [2], keepdims=False), (6,)),
        ["ReduceSum", "Reshape"],
    ),
    "what another node reads": (
        lambda g, x: g.op("Concat", reshape(g, y := summed(g, x), (12,)), reshape(g, y, (12,)), axis=0),
        ["ReduceSum", "Reshape", "Concat"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_makes_an_output(case: str) -> None:
    build, expected = CASES[case]
    g = Graph(opset=20)
    y = build(g, g.input("x", FLOAT, (2, 3, 4)))
    model = g.model({"y": y}, optional_inputs=frozenset())
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == expected
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (actual,) = ReferenceEvaluator(model).run(None, {"x": x})
    whole = x.sum(2) if "last" in case else x.sum(0) * (0.5 if "scaled" in case or "keeps" in case else 1)
    assert actual.shape == y.shape
    np.testing.assert_array_equal(actual.ravel(), np.tile(whole.ravel(), actual.size // whole.size))


def test_a_value_that_is_an_output_itself_stays() -> None:
    g = Graph(opset=20)
    y = summed(g, g.input("x", FLOAT, (2, 3, 4)))
    model = g.model({"y": y, "flat": reshape(g, y, (12,))}, optional_inputs=frozenset())
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["ReduceSum", "Reshape"]
