"""Data in units of its own is computed with as it comes in: nothing has rounded it yet."""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.formulas import Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import model_of, reasons

DEVIATION = """m = ReduceMean<keepdims = 1>(x, axis) d = Sub(x, m) q = Mul(d, d)
    v = ReduceMean<keepdims = 1>(q, axis) s = Sqrt(v)"""
STANDARDIZED = {
    "a quotient": f"{DEVIATION} z = Div(d, s)",
    "a product": f"{DEVIATION} r = Reciprocal(s) z = Mul(d, r)",
    "the least and the most": """l = ReduceMin<keepdims = 1>(x, axis) m = ReduceMax<keepdims = 1>(x, axis)
        d = Sub(x, l) s = Sub(m, l) z = Div(d, s)""",
    "a root of squares": """q = Mul(x, x) v = ReduceMean<keepdims = 1>(q, last) s = Sqrt(v) r = Reciprocal(s)
        z = Mul(x, r)""",
    "a layer normalization": "z = LayerNormalization(x, g, b)",
    "a batch normalization": f"{DEVIATION} f = Reshape(v, all) z = BatchNormalization(d, g, b, none, f)",
}
PICKED = {
    "rows": "c = Gather(centers, rows) d = Sub(x, c)",
    "elements": "c = GatherElements(x, places) d = Sub(x, c)",
    "a median": """t, i = TopK<axis = 0>(x, number) c = Slice(t, at, after, axis) d = Sub(x, c)""",
    "one of two": "c = GatherElements(x, places) m = Where(even, c, x) d = Sub(x, m)",
    "the mean of what is not missing": """n = IsNaN(x) k = Not(n) p = Cast<to = 1>(k)
        h = ReduceSum<keepdims = 1>(p, axis) f = Where(n, none, x) s = ReduceSum<keepdims = 1>(f, axis)
        m = Div(s, h) c = Where(n, m, x) d = Sub(c, m)""",
}
OWN = np.random.default_rng(1)  # other files of tests draw what they drew
NEAR = f32(30_000 + 50 * OWN.standard_normal((64, 64)))
COUNTS = f32(np.exp(21 * OWN.random((64, 64))))  # up to a billion
ROWS, PLACES = OWN.integers(0, 16, 64), OWN.integers(0, 64, (64, 64))


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ["optimal", "fine-grained"])
@pytest.mark.parametrize("name", STANDARDIZED)
def test_counts_are_standardized_by_their_own_batch(name, strategy, low):
    body = f"{STANDARDIZED[name]} y = MatMul(z, w)"
    constants = {"axis": i64(0), "last": i64(1), "all": i64(-1), "none": f32(np.zeros(64))}
    affine = {"g": normal(64), "b": normal(64)} if "(x, g" in body or "g, b" in body else {}
    constants = {name: value for name, value in constants.items() if name in body}
    case = Case(body, constants, {"x": COUNTS, "w": normal(64, 64, size=1 / 8), **affine})
    assert_as_in_fp32(case, strategy, low)


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("name", PICKED)
def test_data_that_an_index_picks_is_as_close_to_other_data_as_it_was(name, low):
    body = f"{PICKED[name]} z = Div(d, spread) y = MatMul(z, w)"
    constants = {
        "spread": f32(50.0),
        "number": i64(64),
        "at": i64(31),
        "after": i64(32),
        "axis": i64(0),
        "even": np.arange(64) % 2 == 0,
        "none": f32(0.0),
    }
    others = {"centers": NEAR[:16], "rows": ROWS, "places": PLACES}
    x = np.where(PLACES > 48, f32(np.nan), NEAR) if "IsNaN" in body else NEAR
    feeds = {"x": x, "w": normal(64, 64, size=1 / 8), **{k: v for k, v in others.items() if k in body}}
    assert_as_in_fp32(Case(body, constants, feeds), "fine-grained", low)


def test_the_gradient_of_a_normalization_reads_data_as_it_comes_in():
    body = """[n] z, m, r = LayerNormalization(DATA, g, b) [p] y = MatMul(z, w)
        [l] loss = ReduceMean<keepdims = 0>(y)
        [q] dz = MatMul(y, v) [d] dx, dg, db = com.microsoft.LayerNormalizationGrad(dz, DATA, g, m, r)"""
    inputs = "float[32,64] x, float[64] g, float[64] b, float[64,64] w, float[64,64] v"
    outputs = "float loss, float[64] dg, float[64] db"
    of_data = reasons(model_of(body.replace("DATA", "x"), inputs=inputs, outputs=outputs))
    body = "[a] h = MatMul(x, w) " + body.replace("DATA", "h")
    of_activations = reasons(model_of(body, inputs=inputs, outputs=outputs))
    assert of_data["n"] is of_data["d"] is Reason.ACCURACY
    assert Reason.ACCURACY not in (of_activations["n"], of_activations["d"])
