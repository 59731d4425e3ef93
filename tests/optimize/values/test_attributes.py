"""Scalar attributes are values, as the same factors are that are constant inputs."""

import numpy as np
import onnx
import pytest

from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.small_steps import STEADY, both, mixed_of, model_of, reasons

BODIES = {
    "Gemm": "y = Gemm<alpha: float = 0.5>(h, w)",
    "Gemm, beta": "y = Gemm<beta: float = 0.5>(z, w, h)",
    "LeakyRelu": "n = Abs(h) m = Neg(n) y = LeakyRelu<alpha: float = 0.5>(m)",
    "Elu": "n = Abs(h) m = Neg(n) y = Elu<alpha: float = 0.5>(m)",
    "Selu": "y = Selu<gamma: float = 0.5>(h)",
}


def step(body, value):
    """The body with its attribute set to `value`, which the text format cannot always write."""
    model = model_of(
        f"h = MatMul(x, w) {body}",
        {"z": np.zeros((64, 64), np.float32)},
        inputs="float[64,64] x, float[64,64] w",
        outputs="float[64,64] y",
    )
    model.graph.node[-1].attribute[0].f = value
    return model


def feeds():
    random = np.random.default_rng(0)
    return {name: random.normal(size=(64, 64)).astype(np.float32) / 8 for name in "xw"}


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("value", [1e-9, -1e-7, 1e7, 0.25])
@pytest.mark.parametrize("body", BODIES)
def test_a_factor_that_is_an_attribute_survives(body, value, strategy):
    expected, actual, _ = both(step(BODIES[body], value), feeds(), strategy)
    assert relative_l2(actual["y"], expected["y"]) < 0.01


@pytest.mark.parametrize(
    ("value", "reason"),
    [(1e-9, Reason.UNDERFLOW), (np.inf, Reason.OVERFLOW), (-np.inf, Reason.OVERFLOW), (1e6, Reason.OVERFLOW)],
)
def test_the_reason_names_the_attribute(value, reason):
    plan = mixed_of(step(BODIES["Gemm"], value), "fine-grained").plan
    decision = plan.decision["Gemm"]
    assert decision.decided_by is reason
    assert "'alpha'" in decision.reason
    assert type(plan).from_json(plan.to_json()) == plan


@pytest.mark.parametrize("value", [float("nan"), 0.5])
def test_a_factor_that_the_low_precision_holds_costs_nothing(value):
    """NaN is NaN in every precision."""
    assert reasons(step(BODIES["Gemm"], value))["Gemm"] is Reason.MARGIN_LOW
    assert reasons(step(BODIES["Gemm"], 1e-9), low=Precision.BF16)["Gemm"] is Reason.MARGIN_LOW


def test_factors_of_products_add_up_along_a_chain():
    factor = "Gemm<alpha: float = 0.001>"
    body = f"a = {factor}(h, w) b = {factor}(a, w) y = {factor}(b, w)"
    expected, actual, _ = both(step(body, 0.001), feeds(), "fine-grained")
    assert relative_l2(actual["y"], expected["y"]) < 0.01


@pytest.mark.parametrize("value", [-6e4, -1e5])
def test_what_pad_fills_borders_with_counts_as_an_input_does(value):
    """Until opset 11 it is an attribute."""
    as_input = model_of(
        "p = Pad(x, widths, fill) y = MatMul(p, w)",
        {"widths": np.array([0, 0, 0, 32]), "fill": np.float32(value)},
        inputs="float[64,32] x, float[64,64] w",
        outputs="float[64,64] y",
    )
    as_attribute = onnx.ModelProto()
    as_attribute.CopyFrom(as_input)
    as_attribute.opset_import[0].version = 10
    del as_attribute.graph.node[0].input[1:], as_attribute.graph.initializer[:]
    settings = onnx.helper.make_node("Pad", [], [], pads=[0, 0, 0, 32], value=value).attribute
    as_attribute.graph.node[0].attribute.extend(settings)
    assert reasons(as_attribute)["MatMul"] is reasons(as_input)["MatMul"] is Reason.VALUE_OVERFLOW
