"""More formulas in which a value is needed more exactly than a low precision holds it.

Losses, attention, schedules, samplers, geometry and audio: each was wrong when ranges alone decided.
"""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal

SHARES = f32(RANDOM.random((64, 64)) ** 0.05)
W = normal(64, 64, size=1 / 8)
ONE = {"one": f32(1), "least": f32(1e-6), "most": f32(1 - 1e-6), "minus": f32(-1 + 1e-6), "rows": i64(1)}
TOKENS = {name: normal(1, 1024, 32, mean=1.0) for name in "qkv"}
POINTS = np.concatenate([RANDOM.random((512, 2)) - 0.5, RANDOM.random((512, 1)) + 2], 1)
CLOSE = normal(64, 64)
PLANE = np.stack(
    [np.tile(np.linspace(-1, 1, 64), 64), np.repeat(np.linspace(-1, 1, 64), 64), np.ones(4096)], 1
)
STEPS = {"start": i64(0), "next": i64(1), "last": i64(63), "end": i64(64), "h": f32(0.01)}

OWN = np.random.default_rng(31)  # so that other draws stay as they are
VIEWS = OWN.normal(size=(64, 64)), OWN.normal(size=(64, 64)) * 0.05
TWO_SHARES = "a = MatMul(x, w) b = MatMul(z, w) p = Softmax(a) q = Softmax(b)"
CLASSES = {"x": f32(VIEWS[0]), "z": f32(VIEWS[0] + VIEWS[1]), "w": f32(OWN.normal(size=(64, 1000)) / 8)}

CASES = {
    "binary cross entropy of clipped shares": Case(
        """c = Clip(x, least, most) q = Sub(one, c) l = Log(c) k = Log(q) a = Mul(t, l) u = Sub(one, t)
           b = Mul(u, k) y = Add(a, b)""",
        ONE,
        {"x": SHARES, "t": f32(RANDOM.random((64, 64)) > 0.5)},
    ),
    "log odds": Case(
        "c = Clip(x, least, most) q = Sub(one, c) r = Div(c, q) l = Log(r) y = MatMul(l, w)",
        ONE,
        {"x": SHARES, "w": W},
    ),
    "log odds of what is all but certain": Case(
        "c = Clip(x, least, most) q = Sub(one, c) r = Div(c, q) l = Log(r) y = MatMul(l, w)",
        ONE,
        {"x": f32(np.maximum(SHARES, np.eye(64))), "w": W},
    ),
    "draws by the inverse of a distribution": Case(
        "u = Clip(x, least, most) q = Sub(one, u) l = Log(q) g = Neg(l) y = MatMul(g, w)",
        ONE,
        {"x": SHARES, "w": W},
    ),
    "angle between vectors": Case(
        """nx = ReduceL2<keepdims = 1>(x, rows) a = Div(x, nx)
           nz = ReduceL2<keepdims = 1>(z, rows) b = Div(z, nz)
           m = Mul(a, b) c = ReduceSum<keepdims = 1>(m, rows) k = Clip(c, minus, most) y = Acos(k)""",
        ONE,
        {"x": CLOSE, "z": CLOSE + normal(64, 64, size=0.03)},
        "float[64,1] y",
    ),
    "random features of attention": Case(
        """fq = Exp(q) fk = Exp(k) kt = Transpose<perm = [0, 2, 1]>(fk) kv = MatMul(kt, v)
           top = MatMul(fq, kv)
           s = ReduceSum<keepdims = 1>(kt, last) bottom = MatMul(fq, s) y = Div(top, bottom)""",
        {"last": i64(-1)},
        TOKENS,
        "float[1,1024,32] y",
    ),
    "linear attention by Einsum": Case(
        """fq = Relu(q) fk = Relu(k) kv = Einsum<equation = "bnd,bne->bde">(fk, v)
           top = Einsum<equation = "bnd,bde->bne">(fq, kv) s = ReduceSum<keepdims = 0>(fk, rows)
           bottom = Einsum<equation = "bnd,bd->bn">(fq, s) u = Unsqueeze(bottom, last) y = Div(top, u)""",
        {"last": i64(-1), "rows": i64(1)},
        TOKENS,
        "float[1,1024,32] y",
    ),
    "buckets of distances": Case(
        """a = Abs(x) b = Clip(a, zero, far) c = Add(b, one) l = Log(c) s = Mul(l, scale) i = Cast<to = 7>(s)
           y = Gather(t, i)""",
        {"one": f32(1), "zero": f32(0), "far": f32(1000), "scale": f32(4)},
        {"x": normal(64, 64, size=10.0), "t": normal(128, 8)},
        "float[64,64,8] y",
    ),
    "cosine schedule near its start": Case(
        "t = Mul(x, turn) c = Cos(t) q = Mul(c, c) d = Sub(one, q) s = Sqrt(d) y = MatMul(s, w)",
        {"turn": f32(np.pi / 2), "one": f32(1)},
        {"x": f32(RANDOM.random((64, 64)) * 0.05), "w": W},
    ),
    "noise of early diffusion steps": Case(
        "a = Gather(table, t) d = Sub(one, a) s = Sqrt(d) u = Unsqueeze(s, rows) y = Mul(x, u)",
        {"table": f32(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))), **ONE},
        {"x": normal(64, 64), "t": np.arange(64)},
    ),
    "histogram": Case(
        """h = Sigmoid(x) s = Mul(h, bins) f = Floor(s) i = Cast<to = 7>(f) o = OneHot(i, depth, switch)
           y = ReduceSum<keepdims = 0>(o, first)""",
        {"bins": f32(50), "depth": np.array(51), "switch": f32([0, 1]), "first": i64(0)},
        {"x": normal(4096)},
        "float[51] y",
    ),
    "projection into an image": Case(
        """a = Slice(p, c0, c1, c1) d = Slice(p, c2, c3, c1) u = Div(a, d) s = Mul(u, focal)
           o = Add(s, centre)
           f = Floor(o) i = Cast<to = 7>(f) g = Gather(t, i) r = Sub(o, f) y = Mul(g, r)""",
        {"c0": i64(0), "c1": i64(1), "c2": i64(2), "c3": i64(3), "focal": f32(500), "centre": f32(320)},
        {"p": f32(POINTS), "t": normal(640)},
        "float[512,1] y",
    ),
    "spatial transformer": Case(
        """m = MatMul(z, w) t = Reshape(m, matrix) g = MatMul(base, t) p = Reshape(g, grid)
           y = GridSample(i, p)""",
        {"matrix": i64(2, 3, 2), "base": f32(PLANE)[None].repeat(2, 0), "grid": i64(2, 64, 64, 2)},
        {"z": normal(2, 64), "w": normal(64, 6, size=0.06), "i": normal(2, 3, 64, 64)},
        "float[2,3,64,64] y",
    ),
    "power of a quiet spectrum in decibels": Case(
        "m = MatMul(x, w) p = Mul(m, m) c = Max(p, floor) l = Log(c) y = Mul(l, scale)",
        {"floor": f32(1e-10), "scale": f32(4.34)},
        {"x": normal(64, 64, size=0.01), "w": W},
    ),
    "mu-law": Case(
        """a = Abs(x) m = Mul(a, mu) p = Add(m, one) l = Log(p) d = Div(l, whole) s = Sign(x) e = Mul(s, d)
           u = Add(e, one) h = Mul(u, half) r = Round(h) i = Cast<to = 7>(r) y = Gather(t, i)""",
        {"mu": f32(255), "one": f32(1), "whole": f32(np.log(256)), "half": f32(127.5)},
        {"x": f32(RANDOM.random(4096) * 2 - 1), "t": normal(256, 4)},
        "float[4096,4] y",
    ),
    "difference quotient": Case(
        """a = Slice(x, start, last, next) b = Slice(x, next, end, next) d = Sub(b, a) g = Div(d, h)
           y = MatMul(g, w)""",
        STEPS,
        {"x": f32(np.sin(np.arange(64) * 0.01 + normal(64, 1)) + 5), "w": normal(63, 8)},
        "float[64,8] y",
    ),
    "what a whole number leaves over": Case(
        "i = Cast<to = 7>(x) f = Cast<to = 1>(i) d = Sub(x, f) y = MatMul(d, w)",
        {},
        {"x": normal(64, 64, size=100.0), "w": W},
    ),
    "divergence of two models that are close": Case(
        """a = LogSoftmax<axis = -1>(x) b = LogSoftmax<axis = -1>(z) d = Sub(a, b) p = Exp(a) m = Mul(p, d)
           y = ReduceSum<keepdims = 0>(m, rows)""",
        ONE,
        {"x": CLOSE, "z": CLOSE + normal(64, 64, size=0.1)},
        "float[64] y",
    ),
    "running sum by a triangle of ones": Case(
        "s = MatMul(triangle, x) y = MatMul(s, w)",
        {"triangle": np.tril(np.ones((2000, 2000), np.float32))},
        {"x": normal(2000, 8, mean=60.0), "w": normal(8, 8)},
        "float[2000,8] y",
    ),
    "sum by a row of ones": Case(
        "s = MatMul(ones, x) y = MatMul(s, w)",
        {"ones": np.ones((1, 5000), np.float32)},
        {"x": normal(5000, 8, mean=40.0), "w": normal(8, 8)},
        "float[1,8] y",
    ),
    "sum of an outer product": Case(
        """a = Relu(x) b = Relu(z) y = Einsum<equation = "bi,bj->b">(a, b)""",
        {},
        {"x": normal(4, 300, size=5.0), "z": normal(4, 300, size=5.0)},
        "float[4] y",
    ),
    "sum by scattering": Case(
        """z = ConstantOfShape(shape) s = ScatterElements<axis = 0, reduction = "add">(z, i, x)
           y = MatMul(s, w)""",
        {"shape": i64(8, 64)},
        {"i": RANDOM.integers(0, 8, (9000, 64)), "x": normal(9000, 64, mean=60.0), "w": W},
        "float[8,64] y",
    ),
    "sum in two stages": Case(
        """h = Relu(x) a = ReduceSum<keepdims = 0>(h, last) b = ReduceSum<keepdims = 0>(a, last)
           y = Mul(b, w)""",
        {"last": i64(-1)},
        {"x": normal(4, 300, 300, mean=2.0), "w": normal(4)},
        "float[4] y",
    ),
    "sum of a feature map": Case(
        "h = Relu(x) s = ReduceSum<keepdims = 0>(h, map) y = MatMul(s, w)",
        {"map": i64(2, 3)},
        {"x": normal(2, 16, 56, 56, size=20.0), "w": normal(16, 8)},
        "float[2,8] y",
    ),
    "a distance of shares of many classes": Case(
        f"{TWO_SHARES} d = Sub(p, q) e = Mul(d, d) t = ReduceSum(e, rows) y = Sqrt(t)",
        {"rows": i64(1)},
        CLASSES,
        "float[64,1] y",
    ),
    "Bhattacharyya's coefficient of many classes": Case(
        f"{TWO_SHARES} m = Mul(p, q) s = Sqrt(m) y = ReduceSum(s, rows)",
        {"rows": i64(1)},
        CLASSES | {"w": f32(OWN.normal(size=(64, 4000)) / 8)},
        "float[64,1] y",
    ),
    "a geometric mean of three shares": Case(
        f"{TWO_SHARES} m = Mul(p, q) n = Mul(m, p) s = Pow(n, third) y = ReduceSum(s, rows)",
        {"rows": i64(1), "third": f32(1 / 3)},
        CLASSES,
        "float[64,1] y",
    ),
    "the length of a short arc": Case(
        "h = MatMul(x, w) s = Sin(h) q = Mul(s, s) a = MatMul(q, ones) y = Sqrt(a)",
        {"ones": f32(np.ones((64, 1)))},
        {"x": f32(OWN.normal(size=(64, 64)) * 1e-5), "w": f32(OWN.normal(size=(64, 64)) / 8)},
        "float[64,1] y",
    ),
}


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ["optimal", "fine-grained"])
@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_fp32_computes(name, strategy, low):
    assert_as_in_fp32(CASES[name], strategy, low)
