"""One computation written in several ways is one computation: what is told of its values is the same."""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import mixed_of

XW = {"x": normal(64, 64, size=0.01), "w": normal(64, 64, size=1 / 8)}
HALF = {"half": f32(0.5), "minus": f32(-0.5)}
CLOSE = {"a": normal(64, 64) + 8, "noise": normal(64, 64, size=1e-3), "w": XW["w"]}
COUNTS = {
    "a": f32(RANDOM.integers(300, 900, (1, 64))),
    "b": f32(RANDOM.integers(300, 900, (1, 64))),
    "w": XW["w"],
}
LAYER_NORM = """h0 = MatMul(x, w) h1 = MatMul(h0, w) h = Add(h0, h1) m = ReduceMean(h, last) d = Sub(h, m)
    q = {} v = ReduceMean(q, last) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) y = MatMul(n, w)"""

CASES = {
    "s(x) - 1/2 by a negative constant": Case(
        "h = MatMul(x, w) e = Sigmoid(h) s = Add(e, minus) y = MatMul(s, w)", HALF, XW
    ),
    "s(x) - 1/2 as -1/2 + s(x)": Case(
        "h = MatMul(x, w) e = Sigmoid(h) n = Neg(half) s = Add(n, e) y = MatMul(s, w)", HALF, XW
    ),
    "s(x) - 1/2 as -(1/2 - s(x))": Case(
        "h = MatMul(x, w) e = Sigmoid(h) r = Sub(half, e) s = Neg(r) y = MatMul(s, w)", HALF, XW
    ),
    "exp(x) - 1 as a power": Case(
        "h = MatMul(x, w) e = Pow(base, h) r = Relu(e) s = Sub(r, one) y = MatMul(s, w)",
        {"base": f32(np.e), "one": f32(1)},
        XW,
    ),
    "s(x) - 1/2 in FP64 on the way": Case(
        """h = MatMul(x, w) e = Sigmoid(h) d = Cast<to = 11>(e) f = Cast<to = 1>(d)
           s = Sub(f, half) y = MatMul(s, w)""",
        HALF,
        XW,
    ),
    "s(x) - 1/2 by a constant from FP64": Case(
        """h = MatMul(x, w) e = Sigmoid(h) d = Cast<to = 11>(half) f = Cast<to = 1>(d)
           s = Sub(e, f) y = MatMul(s, w)""",
        HALF,
        XW,
    ),
    "neighbours by a negative product": Case(
        "b = Add(a, noise) r = Mul(b, b) n = Mul(r, minus) q = Mul(a, a) s = Add(n, q) y = MatMul(s, w)",
        HALF,
        CLOSE,
    ),
    "a difference of two decays": Case(
        "h = MatMul(x, w) k = Mul(h, near) e = Exp(h) f = Exp(k) n = Neg(f) s = Add(e, n) y = MatMul(s, w)",
        {"near": f32(1.001)},
        XW,
    ),
    "products of counts by Einsum": Case(
        """p = Einsum<equation = "ij,ij->ij">(a, b) q = Mul(a, a) y = Div(p, q)""",
        {},
        COUNTS,
        "float[1,64] y",
    ),
    "a sum of neighbours by ones": Case(
        """b = Add(a, noise) s = MatMul(a, ones) t = MatMul(b, ones) y = Sub(s, t)""",
        {"ones": f32(np.ones((64, 1)))},
        CLOSE,
        "float[64,1] y",
    ),
    "a sum by Einsum": Case("""h = MatMul(x, w) y = Einsum<equation = "ij->i">(h)""", {}, XW, "float[64] y"),
    "one over a twelfth power": Case(
        "s = Pow(x, six) t = Mul(s, s) u = Reciprocal(t) s2 = Relu(u) y = MatMul(s2, w)",
        {"six": f32(6)},
        {"x": f32(RANDOM.uniform(0.3, 2.0, (64, 64))), "w": XW["w"]},
    ),
    "expected counts": Case(
        """r = ReduceSum(x, last) c = ReduceSum(x, first) t = ReduceSum(x) p = Mul(r, c) s = Div(p, t)
           y = MatMul(s, w)""",
        {"last": i64(1), "first": i64(0)},
        {"x": f32(RANDOM.integers(5, 12, (64, 64))), "w": XW["w"]},
    ),
    "vectors of unit length that are close": Case(
        """b = Add(a, noise) as = Mul(a, a) bs = Mul(b, b) an = ReduceSum(as, last) bn = ReduceSum(bs, last)
           ar = Sqrt(an) br = Sqrt(bn) u = Div(a, ar) v = Div(b, br) s = Sub(u, v) y = MatMul(s, w)""",
        {"last": i64(1)},
        CLOSE,
    ),
}


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ["optimal", "fine-grained"])
@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_fp32_computes(name, strategy, low):
    assert_as_in_fp32(CASES[name], strategy, low)


def test_a_square_is_low_where_the_product_is():
    """A normalization by hand keeps nothing in FP32 for its square being a power."""
    constants = {"last": i64(1), "eps": f32(1e-5), "two": f32(2)}
    feeds = {"x": normal(64, 64), "w": XW["w"]}
    by_product, by_power = (
        mixed_of(Case(LAYER_NORM.format(square), constants, feeds).model, "optimal").plan.low_nodes
        for square in ("Mul(d, d)", "Pow(d, two)")
    )
    assert by_power == by_product
    assert {"Add", "Sub"} < by_power
