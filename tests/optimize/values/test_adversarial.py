"""Graphs made to break FP16: by every strategy, what comes out is what FP32 computes."""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.small_steps import STEADY, both, mixed_of, model_of, reasons

LARGE, SMALL = 400.0, 1e-4
ONES = {"ones": np.ones((64, 1), np.float32)}
IF = """If(c) <then_branch = t () => ({0} p) {{ {1} }}, else_branch = e () => ({0} q) {{ {2} }}>"""
NORM_BY_A_PRODUCT = ("h = MatMul(x, w) q = Mul(h, h) s = MatMul(q, ones) y = Sqrt(s)", ONES, "float[64,1] y")
LOGARITHM_OF_A_SUM = ("h = MatMul(x, w) q = Mul(h, h) y = ReduceLogSum(q, a)", {"a": [1]}, "float[64,1] y")
CASES = {
    "a norm by a product with ones, large": (*NORM_BY_A_PRODUCT, LARGE),
    "a norm by a product with ones, small": (*NORM_BY_A_PRODUCT, SMALL),
    "the logarithm of a sum of squares, large": (*LOGARITHM_OF_A_SUM, LARGE),
    "the logarithm of a sum of squares, small": (*LOGARITHM_OF_A_SUM, SMALL),
    "a mask from a branch": (
        f"""s = MatMul(x, w) f = {IF.format("float", "p = Constant<value = float {-1e9}>()",
        "q = Constant<value = float {-3e38}>()")} k = Mul(m, f) u = Add(s, k) y = Softmax(u)""",
        {}, "float[64,64] y", 1.0,
    ),
    "a mask that a branch adds": (
        f"""s = MatMul(x, w) b = Cast<to = 1>(big) k = Mul(m, b)
        u = {IF.format("float[64,64]", "p = Add(s, k)", "q = Identity(s)")} y = Softmax(u)""",
        {"big": np.float64(-1e30)}, "float[64,64] y", 1.0,
    ),
    "what is far from zero for a constant": (
        "h = MatMul(x, w) b = Add(h, big) d = Sub(b, big) y = Relu(d)",
        {"big": np.float32(30000)}, "float[64,64] y", 1.0,
    ),
    "the logarithm of an exponential": (
        "h = MatMul(x, w) q = Mul(h, h) n = Neg(q) p = Exp(n) l = Log(p) y = MatMul(l, w)",
        {}, "float[64,64] y", 1.5,
    ),
    "the logarithm of what a probability lacks": (
        "h = MatMul(x, w) p = Sigmoid(h) q = Sub(one, p) l = Log(q) y = MatMul(l, w)",
        {"one": np.float32(1)}, "float[64,64] y", 2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("case", CASES)
def test_what_comes_out_is_what_fp32_computes(case, strategy):
    body, constants, outputs, size = CASES[case]
    constants = {name: np.asarray(value) for name, value in constants.items()}
    inputs = "float[64,64] x, float[64,64] w, float[64,64] m, bool c"
    model = model_of(body, constants, inputs=inputs, outputs=outputs)
    random = np.random.default_rng(0)
    feeds = {
        "x": (random.normal(size=(64, 64)) * size).astype(np.float32),
        "w": (random.normal(size=(64, 64)) / 8).astype(np.float32),
        "m": (random.random((64, 64)) > 0.5).astype(np.float32),
        "c": np.array(True),
    }
    expected, actual, _ = both(model, feeds, strategy)
    error = np.linalg.norm(actual["y"] - expected["y"]) / np.linalg.norm(expected["y"])
    assert error < 0.02


def test_the_reasons_say_so():
    def reasons_of(case, **options):
        body, constants, outputs, _ = CASES[case]
        inputs = "float[64,64] x, float[64,64] w, float[64,64] m, bool c"
        return reasons(model_of(body, constants, inputs=inputs, outputs=outputs), **options).values()

    assert Reason.VALUE_ROUNDING in reasons_of("what is far from zero for a constant")
    assert Reason.LOGARITHM in reasons_of("the logarithm of what a probability lacks")
    assert Reason.LOGARITHM in reasons_of("the logarithm of what a probability lacks", low=Precision.BF16)
    assert Reason.VALUE_OVERFLOW in reasons_of("a mask from a branch")
    assert Reason.SQUARES in reasons_of("a norm by a product with ones, large")


def test_a_square_that_no_sum_reads_may_go_low():
    """A squared ReLU between two products."""
    model = model_of(
        "h = MatMul(x, w) r = Relu(h) [square] s = Mul(r, r) y = MatMul(s, w)",
        inputs="float[64,64] x, float[64,64] w",
        outputs="float[64,64] y",
    )
    assert reasons(model)["square"] is not Reason.SQUARES


@pytest.mark.parametrize(("offset", "is_kept"), [(3.0, False), (128.0, False), (30000.0, True)])
def test_only_offsets_that_swallow_what_they_are_added_to_count(offset, is_kept):
    model = model_of(
        "h = MatMul(x, w) [add] a = Add(h, big) y = Relu(a)",
        {"big": np.float32(offset)},
        inputs="float[64,64] x, float[64,64] w",
        outputs="float[64,64] y",
    )
    assert (reasons(model)["add"] is Reason.VALUE_ROUNDING) is is_kept


def test_a_value_beyond_fp32_is_told_as_a_number():
    """JSON has no infinity."""
    model = model_of(
        "h = MatMul(x, w) e = Exp(big) [mul] k = Mul(h, e) y = Tanh(k)",
        {"big": np.float32(800)},
        inputs="float[64,64] x, float[64,64] w",
        outputs="float[64,64] y",
    )
    plan = mixed_of(model, "fine-grained").plan
    assert Plan.from_json(plan.to_json()).decision["mul"].decided_by is Reason.VALUE_OVERFLOW
