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


KERNELS = [("2", "2,3,4"), ("2, 2", "2,3,4,4"), ("2, 2, 2", "1,16,4,4,4")]


def pooled(kernel, shape, through):
    """Pool nothing but -inf, beside one number and a row of numbers."""
    sizes = list(map(int, shape.split(",")))
    results = ",".join(map(str, [*sizes[:2], *(n // 2 for n in sizes[2:])]))
    model = parse_model(
        f"agraph (float[{shape}] x) => (float[{results}] y) {{ low = Cast <to = {through}> (x) "
        f"z = MaxPool <kernel_shape = [{kernel}], strides = [{kernel}]> (low) y = Cast <to = 1> (z) }}",
        22,
    )
    x = np.full(sizes, -np.inf, np.float32)
    x[0, 0].flat[-1], x[0, 1] = 3.0, -(2.0**127)
    values = RUNTIME.load(model, "cpu").run({"x": x})["y"]
    expected = np.full_like(values, -np.inf)
    expected[0, 0].flat[-1], expected[0, 1] = 3.0, -(2.0**127)
    return values, expected


@pytest.mark.parametrize(("kernel", "shape"), KERNELS)
def test_pools_of_infinities(kernel, shape):
    """ONNX Runtime is no reference here: it loses -inf along one axis, and along three."""
    np.testing.assert_array_equal(*pooled(kernel, shape, 1))


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize(("kernel", "shape"), KERNELS)
def test_pools_of_infinities_in_bf16(kernel, shape):
    np.testing.assert_array_equal(*pooled(kernel, shape, 16))


def test_places_of_infinities():
    """The first element of a window of nothing but -inf is the largest, as in ONNX Runtime."""
    graph = (
        "agraph (float[1,1,2,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] places) "
        "{ y, places = MaxPool <kernel_shape = [1, 2], strides = [1, 2]> (x) }"
    )
    x = np.array([[[[-np.inf, 3, 4, -np.inf], [-np.inf, -np.inf, -LARGEST, -np.inf]]]], np.float32)
    values = RUNTIME.load(parse_model(graph, 22), "cpu").run({"x": x})
    assert values["places"].reshape(-1).tolist() == [1, 2, 4, 6]
    assert values["y"].reshape(-1).tolist() == [3, 4, -np.inf, -LARGEST]


def test_the_lowest_finite_number_is_not_taken_for_infinity():
    graph = (
        "agraph (float[1,1,4] x) => (float[1,1,2] y) { y = MaxPool <kernel_shape = [2], strides = [2]> (x) }"
    )
    values = RUNTIME.load(parse_model(graph, 20), "cpu").run({"x": ROWS[[0, 2], :2].reshape(1, 1, 4)})["y"]
    np.testing.assert_array_equal(values, [[[-np.inf, -LARGEST]]])


@pytest.mark.parametrize("keepdims", [0, 1])
def test_logarithms_of_sums_of_exponentials(keepdims):
    model = parse_model(
        f"agraph (float[8,3] x) => (float[{'8,1' if keepdims else '8'}] y) <int64[1] last = {{1}}> "
        f"{{ y = ReduceLogSumExp <keepdims = {keepdims}> (x, last) }}",
        20,
    )
    values = RUNTIME.load(model, "cpu").run({"x": ROWS})["y"]
    expected = np.logaddexp.reduce(ROWS.astype(np.float64), axis=1, keepdims=bool(keepdims))
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_a_difference_of_infinities_is_still_not_a_number():
    graph = """
    agraph (float[8,3] x) => (float[8,3] y) <int64[1] last = {1}> {
      most = ReduceMax (x, last)
      y = Sub (x, most)
    }
    """
    values = RUNTIME.load(parse_model(graph, 20), "cpu").run({"x": ROWS})["y"]
    assert np.isnan(values[0]).all()


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
