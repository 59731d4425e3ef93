"""Infinities survive where the plugin would begin with the largest finite number."""

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.runtime.onnxruntime.runtime import RUNTIME as ORT
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model

LARGEST = np.finfo(np.float32).max
ROWS = np.array(
    [
        [-np.inf] * 3,
        [np.inf] * 3,
        [-LARGEST] * 3,
        [LARGEST] * 3,
        [-np.inf, -LARGEST, -np.inf],
        [np.inf, LARGEST, np.inf],
        [-np.inf, 3.0, np.inf],
        [-2.5, -1e-30, -7.0],
    ],
    np.float32,
)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_extremes_of_infinities(op, keepdims):
    model = parse_model(
        f"agraph (float[8,3] x) => (float[{'8,1' if keepdims else '8'}] y) <int64[1] last = {{1}}> "
        f"{{ y = {op} <keepdims = {keepdims}> (x, last) }}",
        20,
    )
    values, expected = (runtime.load(model, "cpu").run({"x": ROWS})["y"] for runtime in (RUNTIME, ORT))
    np.testing.assert_array_equal(values, expected)


@pytest.mark.usefixtures("bf16_units")
def test_extremes_of_infinities_in_bf16():
    model = parse_model(
        "agraph (float[3,3] x) => (float[3] y) <int64[1] last = {1}> { low = Cast <to = 16> (x) "
        "z = ReduceMax <keepdims = 0> (low, last) y = Cast <to = 1> (z) }",
        20,
    )
    values = RUNTIME.load(model, "cpu").run({"x": ROWS[[0, 1, 7]]})["y"]
    np.testing.assert_allclose(values, [-np.inf, np.inf, 0.0], atol=1e-29)


def test_a_row_of_attention_that_is_masked_whole():
    graph = """
    agraph (float[2,4] x, bool[2,4] mask) => (float[2,4] p) <float low = {-inf}, float zero = {0.0}> {
      s = Where (mask, x, low)
      most = ReduceMax <axes = [1]> (s)
      dead = Equal (most, low)
      q = Softmax <axis = 1> (s)
      p = Where (dead, zero, q)
    }
    """
    feeds = {"x": np.ones((2, 4), np.float32), "mask": np.array([[False] * 4, [True, False, True, False]])}
    values = RUNTIME.load(parse_model(graph, 17), "cpu").run(feeds)["p"]
    np.testing.assert_array_equal(values, [[0.0] * 4, [0.5, 0.0, 0.5, 0.0]])
