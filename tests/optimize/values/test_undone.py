"""Counts by comparisons, products that a quotient or a root undoes, and projections."""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal

SHARES = f32(RANDOM.dirichlet(np.full(50, 0.1), 2000))
TABLE = normal(51, 4)
SHARE = {"axis": np.array(1, np.int64), "last": i64(-1), "share": f32(0.9), "count": i64(50)}
IDENTITY = {"eye": f32(np.eye(4))}
COUNTS = f32(RANDOM.integers(200, 3000, (64, 4)))
SIDES = RANDOM.uniform(30, 40, (64, 2))
TRIANGLES = np.concatenate([SIDES, SIDES.sum(1, keepdims=True) - 16, np.zeros((64, 1))], 1)
PARTS = "a, b, c, d = Split<axis = 1, num_outputs = 4>(x)"
ALONG = normal(64, 16)

CASES = {
    "a nucleus": Case(
        """p, q = TopK(x, count) s = CumSum(p, axis) l = Less(s, share) f = Cast<to = 1>(l)
           n = ReduceSum(f, last) i = Cast<to = 7>(n) y = Gather(t, i)""",
        SHARE,
        {"x": SHARES, "t": TABLE},
        "float[2000,1,4] y",
    ),
    "a count of truth values": Case(
        """p, q = TopK(x, count) s = CumSum(p, axis) l = Less(s, share) i = Cast<to = 7>(l)
           n = ReduceSum(i, last) y = Gather(t, n)""",
        SHARE,
        {"x": SHARES, "t": TABLE},
        "float[2000,1,4] y",
    ),
    "the first beyond a threshold": Case(
        """p, q = TopK(x, count) s = CumSum(p, axis) l = Greater(s, share) f = Cast<to = 1>(l)
           i = ArgMax<axis = -1>(f) y = Gather(t, i)""",
        SHARE,
        {"x": SHARES, "t": TABLE},
        "float[2000,1,4] y",
    ),
    "a coefficient of correlation of counts": Case(
        f"""x = MatMul(z, eye) {PARTS} s = Mul(a, b) t = Mul(c, d) n = Sub(s, t) e = Add(a, c)
            f = Add(a, d) g = Add(b, c) h = Add(b, d) i = Mul(e, f) j = Mul(i, g) k = Mul(j, h) r = Sqrt(k)
            y = Div(n, r)""",
        IDENTITY,
        {"z": COUNTS},
        "float[64,1] y",
    ),
    "the harmonic mean of two counts": Case(
        f"x = MatMul(z, eye) {PARTS} s = Mul(a, b) t = Mul(c, d) u = Add(s, t) y = Div(s, u)",
        IDENTITY,
        {"z": COUNTS},
        "float[64,1] y",
    ),
    "the geometric mean of two counts": Case(
        f"x = MatMul(z, eye) {PARTS} s = Mul(a, b) y = Sqrt(s)", IDENTITY, {"z": COUNTS}, "float[64,1] y"
    ),
    "the area of triangles": Case(
        f"""x = MatMul(z, eye) {PARTS} e = Add(a, b) f = Add(e, c) s = Mul(f, half) p = Sub(s, a)
            q = Sub(s, b) r = Sub(s, c) i = Mul(s, p) j = Mul(i, q) k = Mul(j, r) y = Sqrt(k)""",
        {**IDENTITY, "half": f32(0.5)},
        {"z": f32(TRIANGLES)},
        "float[64,1] y",
    ),
    "a vector without its projection": Case(
        """m = Mul(a, b) s = ReduceSum(m, last) q = Mul(a, a) n = ReduceSum(q, last) c = Div(s, n)
           p = Mul(a, c) r = Sub(b, p) k = MatMul(r, w) y = Mul(k, scale)""",
        {"last": i64(-1), "scale": f32(100)},
        {"a": ALONG, "b": f32(ALONG + normal(64, 16, size=0.02)), "w": normal(16, 8)},
        "float[64,8] y",
    ),
}


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ["optimal", "fine-grained"])
@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_fp32_computes(name, strategy, low):
    assert_as_in_fp32(CASES[name], strategy, low)
