"""Gradients that carry a loss scale, or lack one: what is summed or divided out stays FP32."""

import numpy as np
import pytest
from onnx import numpy_helper

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.small_steps import STEADY, both, mixed_of, model_of, reasons

SCALED = """[fc] h = MatMul(x, w) [mean] loss = ReduceMean<keepdims=0>(h)
    [seed] seed = Mul(share, loss_scale) [dh] dh = Expand(seed, shape) [xt] xt = Transpose<perm=[1,0]>(x)
    [gw] gw = MatMul(xt, dh) [gb] gb = ReduceSum<keepdims=0>(dh, axis)
    [inverse] inverse = Reciprocal(loss_scale) [w_out] dw = Mul(gw, inverse) [b_out] db = Div(gb, loss_scale)
    [finite] magnitude = ReduceL1<keepdims=0>(dw)"""


def scaled_step(rows=64):
    return model_of(
        SCALED,
        {
            "share": np.float32(1 / (rows * 32)),
            "shape": np.array([rows, 32], np.int64),
            "axis": np.array([0], np.int64),
        },
        inputs=f"float[{rows},64] x, float[64,32] w, float loss_scale",
        outputs="float loss, float[64,32] dw, float[32] db, float magnitude",
    )


@pytest.mark.parametrize("strategy", STEADY)
def test_the_loss_scale_is_divided_out_in_fp32(strategy):
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(64, 64)).astype(np.float32) * 1e-3,
        "w": random.normal(size=(64, 32)).astype(np.float32),
        "loss_scale": np.array(65536.0, np.float32),
    }
    expected, actual, _ = both(scaled_step(), feeds, strategy)
    for name in ("dw", "db", "magnitude"):
        error = np.linalg.norm(actual[name] - expected[name]) / np.linalg.norm(expected[name])
        assert error < 0.005, name


def test_what_is_behind_the_division_says_so():
    reason_of = reasons(scaled_step())
    assert reason_of["w_out"] is reason_of["b_out"] is reason_of["finite"] is Reason.UNSCALED
    assert reason_of["seed"] is Reason.SCALAR_INPUT
    assert "gb" in mixed_of(scaled_step(), "fine-grained").plan.low_nodes


def test_a_sum_of_scaled_gradients_over_a_whole_batch_stays_fp32():
    reason_of = reasons(scaled_step(rows=1 << 16))
    assert reason_of["gb"] is Reason.SCALED_SUM
    assert reasons(scaled_step(rows=1 << 16), low=Precision.BF16)["gb"] is not Reason.SCALED_SUM


STAGES = """[fc] h = Conv(x, w) [mean] loss = ReduceMean<keepdims=0>(h)
    [seed] seed = Mul(share, loss_scale) [dh] dh = Expand(seed, shape) [relu] dr = Relu(dh)
    [sample] s = ReduceSum<keepdims=0>(dr, spatial) [batch] gb = ReduceSum<keepdims=0>(s, axis)"""


def test_where_each_sample_is_summed_first_only_the_sum_over_the_batch_stays_fp32():
    model = model_of(
        STAGES,
        {
            "share": np.float32(1.0),
            "shape": np.array([16, 4, 64, 64], np.int64),
            "spatial": np.array([2, 3], np.int64),
            "axis": np.array([0], np.int64),
        },
        inputs="float[16,3,64,64] x, float[4,3,1,1] w, float loss_scale",
        outputs="float loss, float[4] gb",
    )
    plan = mixed_of(model, "fine-grained").plan
    assert "sample" in plan.low_nodes
    assert reasons(model)["batch"] is Reason.SCALED_SUM
    # A gradient of 1: the sum of a sample is 4,096, and of the batch 65,536, which FP16 does not hold.
    feeds = {
        "x": np.zeros((16, 3, 64, 64), np.float32),
        "w": np.zeros((4, 3, 1, 1), np.float32),
        "loss_scale": np.array(1.0, np.float32),
    }
    expected, actual, _ = both(model, feeds, "fine-grained")
    np.testing.assert_array_equal(actual["gb"], expected["gb"])


@pytest.mark.parametrize(("scaled", "warned"), [(True, False), (False, True)])
def test_a_backward_pass_without_a_loss_scale_is_known(scaled, warned):
    model = scaled_step()
    if not scaled:
        for node in model.graph.node:
            node.input[:] = ["one" if name == "loss_scale" else name for name in node.input]
        del model.graph.input[2]
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1.0), "one"))
    assert bool(mixed_of(model, "fine-grained").unscaled_gradients) is warned
    assert not mixed_of(model, "fine-grained", low=Precision.BF16).unscaled_gradients


def test_squares_of_what_is_known_to_be_small_may_go_low():
    text = "[n] s = Softmax(x) [m] q = Mul(s, s) [r] t = ReduceSum<keepdims=0>(q, axis) [y] y = MatMul(x, x)"
    model = model_of(
        text,
        {"axis": np.array([1], np.int64)},
        inputs="float[16,16] x",
        outputs="float[16] t, float[16,16] y",
    )
    assert reasons(model)["m"] is not Reason.SQUARES


@pytest.mark.parametrize("strategy", STEADY)
def test_a_norm_that_overflows_itself_divides_in_fp32(strategy):
    model = model_of(
        "[loss] loss = ReduceMax<keepdims=0>(x) [fc] g = MatMul(x, w) [square] s = Mul(g, g)"
        " [sum] n2 = ReduceSum<keepdims=0>(s) [root] n = Sqrt(n2) [ratio] c = Div(most, n)"
        " [clip] y = Mul(g, c)",
        {"most": np.float32(100.0)},
        inputs="float[128,64] x, float[64,64] w",
        outputs="float loss, float[128,64] y",
    )
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(128, 64)).astype(np.float32) * 2000,
        "w": np.eye(64, dtype=np.float32),
    }
    expected, actual, _ = both(model, feeds, strategy)
    np.testing.assert_allclose(actual["y"], expected["y"], atol=0.01)
