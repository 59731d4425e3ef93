"""One computation written in several ways is one computation: what is told of its values is the same."""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import mixed_of

XW = {"x": normal(64, 64, size=0.01), "w": normal(64, 64, size=1 / 8)}
OWN = np.random.default_rng(30)  # so that other draws stay as they are
RATES = OWN.uniform(0.5, 1, (64, 1))
TABLE = {name: f32(OWN.integers(800, 2000, (64, 2))) for name in "ijkl"} | {"w": f32(np.eye(2))}
MATTHEWS = """a = MatMul(i, w) b = MatMul(j, w) c = MatMul(k, w) d = MatMul(l, w) p = Mul(a, d) q = Mul(b, c)
    n = Sub(p, q) ab = Add(a, b) ac = Add(a, c) bd = Add(b, d) cd = Add(c, d) s = Mul(ab, ac) t = Mul(s, bd)
    u = Mul(t, cd) r = Sqrt(u) {}"""
ALIBI = """c = CumSum(mask, axis) f = Cast<to = 1>(c) {} b = Mul(n, slope) h = MatMul(x, k) s = Add(h, b)
    p = Softmax(s) y = MatMul(p, v)"""
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
    "vectors of unit length that are close, their squares summed by ones": Case(
        """as = Mul(a, a) bs = Mul(b, b) an = MatMul(as, ones) bn = ReduceSum(bs, last)
           ar = Sqrt(an) br = Sqrt(bn) u = Div(a, ar) v = Div(b, br) n = Neg(v) s = Add(n, u)
           y = MatMul(s, w)""",
        {"last": i64(1), "ones": f32(np.ones((64, 1)))},
        {"a": CLOSE["a"], "b": CLOSE["a"] + CLOSE["noise"], "w": XW["w"]},
    ),
    "a running mean with weights that decay, by a reciprocal": Case(
        """h = MatMul(x, w) d = Sub(h, decay) m = ReduceMax(d, first) k = Sub(d, m) e = Exp(k) p = Mul(e, v)
           s = CumSum(p, at) t = CumSum(e, at) r = Reciprocal(t) y = Mul(s, r)""",
        {"first": i64(0), "at": np.array(0), "decay": f32(np.arange(64)[::-1, None] * 0.5)},
        {**XW, "v": f32(OWN.normal(size=(64, 64)))},
    ),
    **{
        f"a mean with small exponentials as weights, summed by {way}": Case(
            f"""h = MatMul(x, w) q = Mul(h, h) d = Add(q, far) n = Neg(d) e = Exp(n) p = Mul(e, v) {sums}
            r = Div(s, t) y = MatMul(r, w)""",
            {"far": f32(18), "ones": f32(np.ones(shape)), "rows": i64(1, 64, 64), "square": i64(-1, 64)},
            {"x": normal(64, 64), "w": XW["w"], "v": f32(OWN.normal(size=(64, 64)))},
        )
        for way, shape, sums in (
            ("ones", (64, 64), "s = MatMul(p, ones) t = MatMul(e, ones)"),
            (
                "a convolution of ones",
                (64, 64, 3),
                """p2 = Reshape(p, rows) e2 = Reshape(e, rows) s2 = Conv<pads = [1, 1]>(p2, ones)
                t2 = Conv<pads = [1, 1]>(e2, ones) s = Reshape(s2, square) t = Reshape(t2, square)""",
            ),
        )
    },
    "a difference of decays, one of them a power": Case(
        """t = MatMul(x, w) h = Mul(t, slow) k = Mul(t, fast) i = Neg(h) j = Neg(k) e = Exp(i)
           f = Pow(base, j) y = Sub(e, f)""",
        {"base": f32(np.e)},
        {
            "x": f32(OWN.uniform(0.1, 1, (64, 64))),
            "w": f32(OWN.uniform(0.01, 0.03, (64, 64))),
            "slow": f32(RATES),
            "fast": f32(RATES * 1.01),
        },
    ),
    "radial basis functions by a negative table": Case(
        """n = Neg(centers) d = Add(n, x) q = Pow(d, two) s = Mul(q, steep) e = Exp(s) y = MatMul(e, w)""",
        {"centers": f32(np.linspace(0, 10, 64)[None]), "two": f32(2), "steep": f32(-90)},
        {"x": f32(OWN.uniform(0, 10, (64, 1))), "w": f32(OWN.normal(size=(64, 64)) / 8)},
    ),
    **{
        f"a correlation of counts, its root {moved}": Case(
            MATTHEWS.format(way),
            {"shape": i64(64, 2)},
            TABLE,
            "float[64,2] y",
        )
        for moved, way in (
            ("named", "m = Identity(r) y = Div(n, m)"),
            ("reshaped", "m = Reshape(r, shape) y = Div(n, m)"),
            ("inverted", "m = Reciprocal(r) y = Mul(n, m)"),
        )
    },
    "a short distance in FP64 on the way": Case(
        """h = MatMul(x, w) s = Sin(h) q = Pow(s, two) t = ReduceSum(q, last) d = Cast<to = 11>(t)
           f = Cast<to = 1>(d) r = Sqrt(f) y = Mul(r, earth)""",
        {"last": i64(1), "earth": f32(12742), "two": f32(2)},
        {"x": f32(OWN.normal(size=(64, 2)) * 1e-5), "w": f32(np.eye(2))},
        "float[64,1] y",
    ),
    **{
        f"positions from the first, {words}": Case(
            ALIBI.format(way),
            {"axis": i64(1).reshape(()), "one": f32(1), "slope": f32(0.35)},
            {
                "mask": np.ones((1, 512), np.int64),
                "x": f32(OWN.normal(size=(64, 64))),
                "k": f32(OWN.normal(size=(64, 512)) / 8),
                "v": f32(OWN.normal(size=(512, 64)) / 8),
            },
        )
        for words, way in (("subtracted", "n = Sub(f, one)"), ("negated", "d = Sub(one, f) n = Neg(d)"))
    },
    "a sum of squares that is named again": Case(
        """h = MatMul(x, w) q = Mul(h, h) t = ReduceSum(q, last) u = MatMul(x, v)
           m = Mul(t, u) y = Identity(m)""",
        {"last": i64(1)},
        {
            "x": f32(OWN.normal(size=(64, 64)) * 100),
            "w": f32(OWN.normal(size=(64, 64)) / 2),
            "v": f32(OWN.normal(size=(64, 1))),
        },
        "float[64,1] y",
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
