"""Zeros around an image stay apart from the pool that reads them, whatever ONNX Runtime's optimizer fuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.builder.compact import pad
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

_LEVEL = onnxruntime.GraphOptimizationLevel
X = -1 - np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)


def padded(g: Graph, x: Value, width: int, number: float = 0.0) -> Value:
    return pad(g, x, [0, 0, width, 0], [0, 0, 0, width], number)


def larger(g: Graph, x: Value) -> Value:
    return g.op("MaxPool", padded(g, x, 1), kernel_shape=[2, 2])


def larger_of_wide(g: Graph, x: Value) -> Value:
    return g.op("MaxPool", padded(g, x, 3), kernel_shape=[2, 2])


def mean_of_wide(g: Graph, x: Value) -> Value:
    return g.op("AveragePool", padded(g, x, 3), kernel_shape=[2, 2])


def mean_of_twice_padded(g: Graph, x: Value) -> Value:
    pool = {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    return g.op("AveragePool", padded(g, x, 1), **pool)


def written(build: Callable[[Graph, Value], Value], opset: int = 20) -> onnx.ModelProto:
    g = Graph(opset=opset)
    model = g.model({"y": build(g, g.input("x", TensorProto.FLOAT, X.shape))}, optional_inputs=frozenset())
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, level: Any) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": X})[0])


@pytest.mark.parametrize("build", [larger, larger_of_wide, mean_of_wide, mean_of_twice_padded])
def test_the_optimizer_changes_nothing(build: Callable[[Graph, Value], Value]) -> None:
    model = written(build)
    expected = run(model, _LEVEL.ORT_DISABLE_ALL)
    assert 0 in expected  # of nothing but zeros
    assert np.array_equal(run(model, _LEVEL.ORT_ENABLE_ALL), expected)


def test_pads_that_fuse_rightly_are_left_to_the_optimizer() -> None:
    model = written(lambda g, x: g.op("AveragePool", padded(g, x, 1), kernel_shape=[2, 2]))
    assert [len(node.input) for node in model.graph.node if node.op_type == "Pad"] == [3]


def test_axes_are_named_in_opsets_that_have_them() -> None:
    """A graph of another exporter keeps its opset."""
    (older, *_), (newer, *_) = (written(larger, opset).graph.node for opset in (17, 18))
    assert (len(older.input), len(newer.input)) == (3, 4)
