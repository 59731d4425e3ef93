"""Values that a low precision serves well stay free; operators say how exactly they need the others."""

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import also
from campo_onnx.ops.spec import Family, OpSpec
from campo_onnx.ops.values.asks import logarithm
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.values.ranges import DeclaredRange
from tests.optimize.formulas import Case, f32, i64, normal
from tests.optimize.small_steps import model_of, reasons

XW = {"x": normal(64, 64, size=3.0), "w": normal(64, 64, size=1 / 8)}
NUMBERS = {"half": f32(0.5), "eps": f32(1e-3), "small": f32(0.01), "two": f32(2), "one": f32(1)}

# Products, sums and normalizations that a low precision is made for: nothing in them is needed more exactly.
HARMLESS = {
    "a share that stays below 0.9": "t = Tanh(h) c = Clip(t, small, half) q = Sub(one, c) y = Log(q)",
    "a softmax by hand": """top = ReduceMax<keepdims = 1>(h, axis) d = Sub(h, top) e = Exp(d)
        s = ReduceSum<keepdims = 1>(e, axis) y = Div(e, s)""",
    "a normalization by hand": """mean = ReduceMean<keepdims = 1>(h, axis) d = Sub(h, mean) q = Mul(d, d)
        v = ReduceMean<keepdims = 1>(q, axis) g = Add(v, eps) r = Sqrt(g) y = Div(d, r)""",
    "a mask of what is positive": "g = Greater(h, zero) f = Cast<to = 1>(g) y = Mul(h, f)",
    "a mask of what is small": "a = Abs(h) g = Less(a, two) f = Cast<to = 1>(g) y = Mul(h, f)",
    "the largest few": """sizes, places = TopK<axis = 1>(h, four) f = ReduceSum<keepdims = 1>(sizes, axis)
        y = Mul(h, f)""",
    "a difference of two products": "k = MatMul(w, x) y = Sub(h, k)",
    "a residual": "t = Tanh(h) y = Add(h, t)",
    "a gate": "g = Sigmoid(h) r = Sub(one, g) k = MatMul(w, x) a = Mul(r, k) b = Mul(g, h) y = Add(a, b)",
    "GELU as JAX writes it": "n = Neg(h) e = Erf(n) c = Sub(one, e) a = Mul(h, half) y = Mul(a, c)",
    "a step towards another": "k = MatMul(w, x) d = Sub(k, h) s = Mul(d, half) y = Add(h, s)",
    "a rotation": """a, b = Split<axis = 1, num_outputs = 2>(h) c, s = Split<axis = 1, num_outputs = 2>(w)
        ac = Mul(a, c) bs = Mul(b, s) l = Sub(ac, bs) bc = Mul(b, c) as = Mul(a, s) r = Add(bc, as)
        y = Concat<axis = 1>(l, r)""",
}


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_low_precision_is_made_for_stays_free(name, low):
    constants = {**NUMBERS, "axis": i64(1), "four": i64(4), "zero": f32(0)}
    model = Case(f"h = MatMul(x, w) {HARMLESS[name]}", constants, XW).model
    assert Reason.ACCURACY not in reasons(model, low=low).values()
    assert Reason.LONG_SUM not in reasons(model, low=low).values()


ADAM = """h = MatMul(x, w) p = Mul(h, w) g = ReduceSum<keepdims = 1>(p, axis) a = Mul(state, half)
    q = Mul(g, g) b = Mul(q, half) m = Add(a, b) c = Div(m, small) r = Sqrt(c) e = Add(r, eps) u = Div(g, e)
    y = Mul(h, u)"""


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
def test_a_gradient_that_is_divided_by_the_root_of_its_own_squares_stays_free(low):
    inputs = {**XW, "state": normal(64, 1) ** 2}
    both_versions = Case(ADAM, {**NUMBERS, "axis": i64(1)}, inputs, "float[64,64] y, float[64,1] m").model
    assert Reason.ACCURACY not in reasons(both_versions, low=low).values()


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
def test_the_root_of_other_squares_is_no_such(low):
    angle = "h = MatMul(x, w) a = Mul(x, x) b = Mul(h, h) n = Add(a, b) r = Sqrt(n) q = Div(x, r) y = Acos(q)"
    assert reasons(Case(angle, {}, XW).model, low=low)["Div"] is Reason.ACCURACY


@pytest.mark.parametrize("ranges", [{}, {"m": DeclaredRange(lowest=0.0, highest=1.0)}])
def test_a_softmax_behind_a_mask_stays_free(ranges):
    mask = "h = MatMul(x, w) d = Sub(one, m) a = Mul(d, masked) s = Add(h, a) y = Softmax(s)"
    inputs = {**XW, "m": np.ones((1, 64), np.float32)}
    model = Case(mask, {"one": f32(1), "masked": f32(-1e4)}, inputs).model
    assert Reason.ACCURACY not in reasons(model, ranges=ranges).values()


@pytest.mark.parametrize(("gate", "is_free"), [("k = MatMul(g, w)", True), ("k = Mul(g, g)", False)])
def test_what_a_gate_lacks_to_one_counts_only_where_the_loss_reads_the_gate(gate, is_free):
    step = f"""h = MatMul(x, w) g = Sigmoid(h) {gate} loss = ReduceMean<keepdims = 0>(k) d = Mul(w, scale)
        r = Sub(one, g) s = Mul(g, r) e = Mul(d, s) y = MatMul(x, e)"""
    model = model_of(
        step,
        {"one": f32(1)},
        inputs="float[64,64] x, float[64,64] w, float scale",
        outputs="float loss, float[64,64] y",
    )
    reason = next(r for name, r in reasons(model).items() if name.startswith("Sub"))
    assert (reason is not Reason.ACCURACY) is is_free


@pytest.mark.parametrize(
    ("op", "largest", "is_free"), [("Mul", 8, True), ("Mul", 127, False), ("Div", 127, True)]
)
def test_a_table_of_large_factors_before_a_softmax_is_a_low_temperature(op, largest, is_free):
    table = np.linspace(largest, -largest, 64, dtype=np.float32)
    scores = f"h = MatMul(x, w) k = {op}(h, table) d = Sub(k, w) y = Softmax(d)"
    every = reasons(Case(scores, {"table": table}, XW).model)
    assert (Reason.ACCURACY not in every.values()) is is_free


def test_an_operator_brings_its_own():
    text = """<ir_version: 10, opset_import: ["": 20, "my.domain": 1]> g (float[64,64] x) => (float[64,64] y)
        <float most = {0.9999}, float least = {0.0001}, float one = {1.0}>
        { [clip] c = Clip(x, least, most) q = Sub(one, c) y = my.domain.Surprise(q) }"""
    model = onnx.parser.parse_model(text)
    surprise = OpSpec(key=OpKey("my.domain", "Surprise"), family=Family.ELEMENTWISE)
    with also(surprise):
        assert reasons(model)["clip"] is not Reason.ACCURACY
    with also(replace(surprise, asks_accuracy=logarithm)):
        assert reasons(model)["clip"] is Reason.ACCURACY
