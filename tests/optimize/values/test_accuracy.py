"""Values that are needed more exactly than a low precision holds them stay FP32, whatever their range.

Every case is held against FP32 under plans that lower whatever they may, in FP16 and BF16.
"""

import numpy as np
import pytest

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import mixed_of

XW = {"x": normal(64, 64, size=3.0), "w": normal(64, 64, size=1 / 8)}
CLIP = {"least": f32(1e-4), "most": f32(1 - 1e-4), "one": f32(1), "minus": f32(-1 + 1e-4)}
NEAR_ONE = {"x": f32(RANDOM.random((64, 64)) ** 0.1), "w": XW["w"]}


def curve(op, source):
    """A function with an infinite slope at 1, of a share in front of a product or behind it."""
    if source == "a product":
        return Case(f"h = MatMul(x, w) t = Tanh(h) c = Clip(t, minus, most) y = {op}(c)", CLIP, XW)
    feeds = {"x": np.tanh(XW["x"]), "w": XW["w"]}
    return Case(f"c = Clip(x, minus, most) a = {op}(c) y = MatMul(a, w)", CLIP, feeds)


def linear_attention(features, tokens):
    body = f"""{features.format(t="q", f="fq")} {features.format(t="k", f="fk")}
        kt = Transpose<perm = [0, 2, 1]>(fk) kv = MatMul(kt, v) top = MatMul(fq, kv)
        sums = ReduceSum<keepdims = 1>(fk, axis) st = Transpose<perm = [0, 2, 1]>(sums)
        bottom = MatMul(fq, st)
        y = Div(top, bottom)"""
    feeds = {name: normal(1, tokens, 32, mean=1.0) for name in "qkv"}
    return Case(body, {"one": f32(1), "axis": i64(1)}, feeds, f"float[1,{tokens},32] y")


POINTS = f32(5 + RANDOM.integers(0, 3, (64, 3)) / 4 + RANDOM.integers(0, 512, (64, 3)) / 2**22)
LINKS = f32(3 + RANDOM.integers(0, 8, (64, 64)) / 64)
REST = np.abs(LINKS - np.outer(LINKS.sum(1), LINKS.sum(0)) / LINKS.sum())
ELU, RELU = "e{f} = Elu({t}) {f} = Add(e{f}, one)", "{f} = Relu({t})"
PLACE = """f = Floor(s) i = Cast<to = 7>(f) y = Gather(t, i)"""
TABLE = {"x": normal(2048, size=3.0), "t": normal(8, 8)}
PIXELS = """s = Mul(g, k) f = Floor(s) rest = Sub(s, f)
    fx = Slice(f, c0, c1, c1) fy = Slice(f, c1, c2, c1) row = Mul(fy, width) place = Add(row, fx)
    i = Cast<to = 7>(place) seen = Gather(t, i) share = Slice(rest, c0, c1, c1) y = Mul(seen, share)"""
COLUMNS = {f"c{i}": i64(i) for i in range(5)}
CORNERS = """{0}l = Slice({0}, c0, c1, c1) {0}t = Slice({0}, c1, c2, c1)
    {0}r = Slice({0}, c2, c3, c1) {0}b = Slice({0}, c3, c4, c1)
    {0}w = Sub({0}r, {0}l) {0}h = Sub({0}b, {0}t) {0}area = Mul({0}w, {0}h)"""
GIOU = f"""{CORNERS.format("p")} {CORNERS.format("q")}
    l = Max(pl, ql) t = Max(pt, qt) r = Min(pr, qr) b = Min(pb, qb)
    w0 = Sub(r, l) h0 = Sub(b, t) w = Relu(w0) h = Relu(h0) both = Mul(w, h)
    sum = Add(parea, qarea) union = Sub(sum, both) iou = Div(both, union)
    cl = Min(pl, ql) ct = Min(pt, qt) cr = Max(pr, qr) cb = Max(pb, qb)
    cw = Sub(cr, cl) ch = Sub(cb, ct) hull = Mul(cw, ch) empty = Sub(hull, union) rest = Div(empty, hull)
    y = Sub(iou, rest)"""


def boxes(count):
    corners = RANDOM.random((count, 2)) * 300
    return f32(np.concatenate([corners, corners + RANDOM.random((count, 2)) * 600 + 50], 1))


LOGITS = normal(4, 512, 100, size=3.0)
TOKENS = RANDOM.integers(0, 100, (4, 512, 1))
LOG_SHARES = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum(-1, keepdims=True))
SUMMED = np.take_along_axis(LOG_SHARES, TOKENS, 2)[..., 0].sum(1)
DPO = """lp = LogSoftmax<axis = -1>(l) g = GatherElements<axis = 2>(lp, token) s = Squeeze(g, last)
    {0} total = ReduceSum<keepdims = 0>(m, along) y = Sub(total, reference)"""
PREFERENCE = {"l": LOGITS, "token": TOKENS, "reference": f32(SUMMED + RANDOM.normal(size=4))}
ALIBI = """count = CumSum(mask, axis) back = Sub(count, unit) seen = Mul(back, mask)
    u = Unsqueeze(seen, along) place = Cast<to = 1>(u) slope = Mul(place, slopes)
    bias = Unsqueeze(slope, rows)
    s = MatMul(q, k) z = Add(s, bias) p = Softmax<axis = -1>(z) y = MatMul(p, v)"""
SCAN = """last, all = Scan<num_scan_inputs = 1,
    body = b (float[8] s, float[8] t) => (float[8] n, float[8] o) { n = Add(s, t) o = Identity(n)
    }>(zero, x) y = Mul(all, w)"""
LOOP = """last = Loop<body = b (int64 i, bool c, float[8] s) => (bool d, float[8] n) {
    d = Identity(c) n = Add(s, x) }>(turns, go, zero) row = Unsqueeze(last, along) y = MatMul(row, w)"""

BODIES = {
    "If": """row = If(go) <then_branch = a () => (float[1,8] s) { s = ReduceSum<keepdims = 1>(x, axes) },
        else_branch = b () => (float[1,8] m) { m = ReduceMax<keepdims = 1>(x, axes) }>""",
    "Loop": """row = Loop<body = b (int64 i, bool c) => (bool d, float[8] s) {
        d = Identity(c) s = ReduceSum<keepdims = 0>(x, axes) }>(turns, go)""",
}
COSINE = """xx = Mul(x, x) zz = Mul(z, z) xz = Mul(x, z)
    a = ReduceSum<keepdims = 1>(xx, axis) b = ReduceSum<keepdims = 1>(zz, axis)
    c = ReduceSum<keepdims = 1>(xz, axis) ab = Mul(a, b) r = Sqrt(ab) q = Div(c, r) y = Sub(one, q)"""
CLOSE = normal(64, 64)
CHAIN = """a = Softmax(w) b = Softmax(v) g0 = Softmax(x)
    {} s = ReduceSum<keepdims = 1>(g8, axis) y = Log(s)"""
STATES = "".join(f"h{i} = MatMul(g{i}, a) g{i + 1} = Mul(h{i}, b) " for i in range(8))

CASES = {
    "log(1 - p), clipped": Case(
        "c = Clip(x, least, most) q = Sub(one, c) l = Log(q) y = MatMul(l, w)", CLIP, NEAR_ONE
    ),
    "log(-p + 1), clipped": Case(
        "c = Clip(x, least, most) m = Neg(c) q = Add(m, one) l = Log(q) y = MatMul(l, w)", CLIP, NEAR_ONE
    ),
    "1 / (1 - p)": Case("c = Clip(x, least, most) q = Sub(one, c) y = Div(w, q)", CLIP, NEAR_ONE),
    "sqrt(1 - c^2)": Case(
        "h = MatMul(x, w) t = Tanh(h) c = Clip(t, minus, most) q = Mul(c, c) d = Sub(one, q) y = Sqrt(d)",
        CLIP,
        XW,
    ),
    **{
        f"{op} of {source}": curve(op, source)
        for op in ("Atanh", "Acos", "Asin")
        for source in ("a product", "an input")
    },
    "acosh near 1": Case(
        "s = Mul(x, x) t = Add(s, one) a = Acosh(t) y = MatMul(a, w)",
        CLIP,
        {"x": normal(64, 64, size=0.02), "w": XW["w"]},
    ),
    **{
        f"linear attention by {name}, {tokens}": linear_attention(features, tokens)
        for name, features in (("elu", ELU), ("relu", RELU))
        for tokens in (1024, 4096)
    },
    "index by a floor": Case(
        f"h = Sigmoid(x) s = Mul(h, eight) {PLACE}", {"eight": f32(8)}, TABLE, "float[2048,8] y"
    ),
    "index by a conversion": Case(
        "h = Sigmoid(x) s = Mul(h, eight) i = Cast<to = 7>(s) y = Gather(t, i)",
        {"eight": f32(8)},
        TABLE,
        "float[2048,8] y",
    ),
    "bilinear sampling": Case(
        PIXELS,
        {"k": f32(99), "width": f32(100), **COLUMNS},
        {"g": f32(RANDOM.random((512, 2))), "t": normal(10000)},
        "float[512,1] y",
    ),
    "alibi": Case(
        ALIBI,
        {
            "axis": np.array(1),
            "unit": np.array(1),
            "along": i64(1),
            "rows": i64(2),
            "slopes": f32(2.0 ** -np.arange(1, 5)).reshape(1, 4, 1),
        },
        {
            "mask": np.ones((2, 512), np.int64),
            "q": normal(2, 4, 32, 16),
            "k": normal(2, 4, 16, 512),
            "v": normal(2, 4, 512, 16),
        },
        "float[2,4,32,16] y",
    ),
    "log-probabilities of a sequence minus a reference": Case(
        DPO.format("m = Identity(s)"), {"last": i64(2), "along": i64(1)}, PREFERENCE, "float[4] y"
    ),
    "the same with a mask": Case(
        DPO.format("m = Mul(s, mask)"),
        {"last": i64(2), "along": i64(1)},
        {**PREFERENCE, "mask": np.ones((4, 512), np.float32)},
        "float[4] y",
    ),
    "GIoU in pixels": Case(GIOU, COLUMNS, {"p": boxes(64), "q": boxes(64)}, "float[64,1] y"),
    "roots of areas": Case(
        f"{CORNERS.format('p')} s = Sqrt(parea) y = MatMul(s, w)",
        COLUMNS,
        {"p": boxes(64), "w": normal(1, 64)},
    ),
    "an Einsum that only sums": Case(
        'y = Einsum<equation = "bij->b">(x)', {}, {"x": normal(2, 300, 300, mean=2.0)}, "float[2] y"
    ),
    "audio in 16 bits": Case(
        "s = Mul(x, full) h = MatMul(s, w) r = Relu(h) y = MatMul(r, v)",
        {"full": f32(32768)},
        {"x": normal(16, 400, size=0.3), "w": normal(400, 64), "v": normal(64, 64)},
        "float[16,64] y",
    ),
    "a sum by segments, one-hot": Case(
        "o = OneHot<axis = 0>(i, depth, switch) y = MatMul(o, x)",
        {"depth": np.array(8), "switch": f32([0, 1])},
        {"i": RANDOM.integers(0, 8, 20000), "x": normal(20000, 4, mean=40.0)},
        "float[8,4] y",
    ),
    "a sum by segments, compared": Case(
        "u = Unsqueeze(i, first) e = Equal(u, kinds) o = Cast<to = 1>(e) y = MatMul(o, x)",
        {"first": i64(0), "kinds": np.arange(8).reshape(8, 1)},
        {"i": RANDOM.integers(0, 8, 20000), "x": normal(20000, 4, mean=40.0)},
        "float[8,4] y",
    ),
    "what half precision takes from a product": Case(
        "h = MatMul(x, w) a = Cast<to = 10>(h) b = Cast<to = 1>(a) d = Sub(h, b) y = MatMul(d, w)", {}, XW
    ),
    "what half precision takes from an input": Case(
        "a = Cast<to = 10>(x) b = Cast<to = 1>(a) d = Sub(x, b) y = MatMul(d, w)", {}, XW
    ),
    "a running sum": Case(
        "c = CumSum(x, axis) y = MatMul(c, w)",
        {"axis": np.array(1)},
        {"x": normal(4, 3000, mean=40.0), "w": normal(3000, 8, size=0.001)},
        "float[4,8] y",
    ),
    "a sum by Scan": Case(
        SCAN,
        {"zero": np.zeros(8, np.float32)},
        {"x": normal(9000, 8, mean=20.0), "w": normal(8)},
        "float[9000,8] y",
    ),
    "a sum by Loop": Case(
        LOOP,
        {"zero": np.zeros(8, np.float32), "turns": np.array(9000), "go": np.array(True), "along": i64(0)},
        {"x": normal(8, mean=20.0), "w": normal(8, 8)},
        "float[1,8] y",
    ),
    **{
        f"a sum by {name}, returned": Case(
            f"{text} y = MatMul(row, w)",
            {"go": np.array(True), "axes": i64(0), "turns": np.array(1)},
            {"x": normal(9000, 8, mean=20.0), "w": normal(8, 8)},
            "float[1,8] y",
        )
        for name, text in BODIES.items()
    },
    "the width of a box, by its corners": Case(
        """h = MatMul(x, w) c = Mul(h, wide) k = MatMul(x, v) s = Mul(k, half)
        a = Sub(c, s) b = Add(c, s) y = Sub(b, a)""",
        {"wide": f32(640), "half": f32(0.5)},
        {**XW, "v": XW["w"]},
    ),
    "what a residual adds": Case(
        "h = MatMul(x, w) t = Tanh(h) s = Mul(t, small) z = Add(h, s) y = Sub(z, h)",
        {"small": f32(0.003)},
        XW,
    ),
    "a Laplacian, by neighbours": Case(
        """a = Slice(x, c0, c3, axis) b = Slice(x, c1, c4, axis) c = Slice(x, c2, c5, axis)
        s = Add(a, c) d = Mul(b, two) y = Sub(s, d)""",
        {"two": f32(2), **{f"c{i}": i64(c) for i, c in enumerate((0, 1, 2, 62, 63, 64))}, "axis": i64(1)},
        {"x": f32(np.sin(np.linspace(0, 9, 64 * 64)).reshape(64, 64))},
        "float[64,62] y",
    ),
    "1 less a cosine": Case(
        COSINE,
        {"one": f32(1), "axis": i64(1)},
        {"x": CLOSE, "z": f32(CLOSE + normal(64, 64, size=0.03))},
        "float[64,1] y",
    ),
    "log(1 + x), small": Case(
        "h = MatMul(x, w) a = Abs(h) s = Mul(a, small) t = Add(s, one) y = Log(t)",
        {"small": f32(1e-3), "one": f32(1)},
        XW,
    ),
    "a distance in a periodic box": Case(
        "q = Div(x, side) r = Round(q) s = Mul(r, side) d = Sub(x, s) y = MatMul(d, w)",
        {"side": f32(20)},
        {"x": normal(64, 64, size=50.0), "w": XW["w"]},
    ),
    "areas of boxes, multiplied": Case(
        "s = Sub(x, z) a = ReduceProd<keepdims = 1>(s, axis) y = MatMul(a, w)",
        {"axis": i64(1)},
        {"x": f32(RANDOM.random((64, 2)) * 300 + 500), "z": normal(64, 2, size=9.0), "w": normal(1, 64)},
    ),
    "two inputs that are close": Case(
        "d = Sub(x, z) y = MatMul(d, w)",
        {},
        {"x": CLOSE, "z": f32(CLOSE + normal(64, 64, size=1e-3)), "w": XW["w"]},
    ),
    "a logarithm of shares that add up to almost 1": Case(
        """h = MatMul(x, w) n = Mul(z, small) k = Add(h, n) p = Softmax<axis = 1>(h) q = Softmax<axis = 1>(k)
           m = Mul(p, q) r = Sqrt(m) c = ReduceSum<keepdims = 1>(r, axis) y = Log(c)""",
        {"axis": i64(1), "small": f32(0.2)},
        {**XW, "z": CLOSE},
        "float[64,1] y",
    ),
    "a mean less a geometric mean": Case(
        """h = MatMul(x, w) s = Exp(h) n = Mul(z, small) k = Add(h, n) t = Exp(k) a = Add(s, t) m = Mul(s, t)
           r = Sqrt(m) g = Mul(r, two) y = Sub(a, g)""",
        {"two": f32(2), "small": f32(0.05)},
        {"x": normal(64, 64), "w": XW["w"], "z": CLOSE},
    ),
    "determinants of vectors that are all but parallel": Case(
        """h = MatMul(x, w) n = Mul(z, small) k = Add(h, n)
           a, b = Split<axis = 1, num_outputs = 2>(h) c, d = Split<axis = 1, num_outputs = 2>(k)
           ad = Mul(a, d) bc = Mul(b, c) y = Sub(ad, bc)""",
        {"small": f32(0.02)},
        {**XW, "z": CLOSE},
        "float[64,32] y",
    ),
    "determinants of vectors that are all but parallel, one product negated and both halved": Case(
        """h = MatMul(x, w) n = Mul(z, small) k = Add(h, n)
           a, b = Split<axis = 1, num_outputs = 2>(h) c, d = Split<axis = 1, num_outputs = 2>(k)
           ah = Mul(a, half) ad = Mul(ah, d) bc = Mul(b, c)
           bh = Mul(bc, half) m = Neg(bh) y = Add(ad, m)""",
        {"small": f32(0.02), "half": f32(0.5)},
        {**XW, "z": CLOSE},
        "float[64,32] y",
    ),
    "determinants of vectors that are all but parallel, one part in a shape that is computed": Case(
        """h = MatMul(x, w) n = Mul(z, small) k = Add(h, n)
           a, b = Split<axis = 1, num_outputs = 2>(h) c, d = Split<axis = 1, num_outputs = 2>(k)
           e = Reshape(a, shape) ad = Mul(e, d) bc = Mul(b, c) y = Sub(ad, bc)""",
        {"small": f32(0.02)},
        {**XW, "z": CLOSE, "shape": i64(64, 32)},
        "float[64,32] y",
    ),
    "scores and distances": Case(
        "h = MatMul(x, w) b = Mul(places, slope) s = Add(h, b) y = Softmax<axis = 1>(s)",
        {"places": f32(np.arange(1024).reshape(1, 1024)), "slope": f32(0.06)},
        {"x": normal(64, 64), "w": normal(64, 1024, size=1 / 8)},
        "float[64,1024] y",
    ),
    "a variance in a Gaussian window": Case(
        """q = Mul(x, x) m = Conv(x, window) s = Conv(q, window) n = Mul(m, m) y = Sub(s, n)""",
        {"window": f32(np.exp(-((np.arange(5) - 2) ** 2) / 2) / 2.4836).reshape(1, 1, 1, 5)},
        {"x": f32(np.cumsum(RANDOM.normal(size=(1, 1, 64, 64)) * 0.02, -1) + 1)},
        "float[1,1,64,60] y",
    ),
    "a variance by shares": Case(
        """p = Softmax<axis = -1>(x) h = Add(x, three) q = Mul(h, h) m = MatMul(p, h) s = MatMul(p, q)
           n = Mul(m, m) y = Sub(s, n)""",
        {"three": f32(30)},
        {"x": normal(64, 64, size=0.1)},
    ),
    "shares by rank": Case(
        """h = MatMul(x, w) n = Mul(h, narrow) s = Sigmoid(n) sizes, ranks = TopK<axis = 1>(s, all)
           y = ScatterElements<axis = 1>(h, ranks, shares)""",
        {"narrow": f32(0.01), "all": i64(64), "shares": f32(np.tile(0.8 ** np.arange(64), (64, 1)))},
        XW,
    ),
    "the likelihood of a chain": Case(
        CHAIN.format(STATES),
        {"axis": i64(1)},
        {"x": normal(64, 64), "w": normal(64, 64), "v": normal(64, 64)},
        "float[64,1] y",
    ),
    "neighbours of points": Case(
        """a = Unsqueeze(x, first) b = Unsqueeze(x, second) d = Sub(a, b) q = Mul(d, d)
           s = ReduceSum<keepdims = 0>(q, last) l, i = TopK<axis = 1, largest = 0>(s, four) t = Gather(v, i)
           y = ReduceSum<keepdims = 0>(t, second)""",
        {"first": i64(0), "second": i64(1), "last": i64(2), "four": i64(4)},
        {"x": POINTS, "v": normal(64, 64)},
    ),
    "a difference of squares that FP16 makes infinite": Case(
        "h = MatMul(x, w) q = Mul(h, h) r = Mul(x, x) d = Sub(q, r) b = IsNaN(d) y = Where(b, zero, h)",
        {"zero": f32(0)},
        {"x": normal(64, 64, size=400), "w": normal(64, 64)},
    ),
    "a square that FP16 makes infinite": Case(
        "h = MatMul(x, w) q = Mul(h, h) m = Neg(q) b = IsInf(m) y = Where(b, zero, h)",
        {"zero": f32(0)},
        {"x": normal(64, 64, size=400), "w": normal(64, 64)},
    ),
    "a power whose exponent is large": Case(
        """b = ConstantOfShape<value = float[1] {1.001}>(one) e = Squeeze(b) h = MatMul(x, w)
           y = Pow(e, h)""",
        {"one": i64(1)},
        {"x": f32(RANDOM.integers(0, 256, (64, 64)) * 8), "w": f32(np.eye(64))},
    ),
    "powers of two in a product": Case(
        """h = MatMul(x, w) e = Pow(two, h) u = Reshape(e, rows) c = Conv(u, ones) s = Reshape(c, sums)
           y = Div(e, s)""",
        {"two": f32(2), "rows": i64(64, 1, 64), "sums": i64(64, 1), "ones": f32(np.ones((1, 1, 64)))},
        {"x": normal(64, 64, size=8), "w": f32(np.eye(64))},
    ),
    "neighbours around a circle": Case(
        """h = MatMul(x, w) r = Mul(h, share) a = Slice(r, first, second, one) b = Slice(r, second, last, one)
           c = Concat<axis = 1>(b, a) y = Sub(c, r)""",
        {"share": f32(0.7), "first": i64(0), "second": i64(1), "last": i64(64), "one": i64(1)},
        {"x": f32(3 + RANDOM.integers(-1, 2, (64, 64)) / 64), "w": f32(np.eye(64))},
    ),
    "exponentials in a product": Case(
        "h = MatMul(x, w) e = Exp(h) s = MatMul(e, w) y = Div(e, s)",
        {},
        {"x": normal(64, 64, size=4), "w": f32(np.eye(64))},
    ),
    "squares of what a constant makes large": Case(
        "h = MatMul(x, w) s = Mul(h, many) r = Relu(s) q = Mul(r, r) y = MatMul(q, w)",
        {"many": f32(120)},
        XW,
    ),
    "links beyond those expected": Case(
        """a = MatMul(x, w) r = ReduceSum<keepdims = 1>(a, second) c = ReduceSum<keepdims = 1>(a, first)
           n = ReduceSum<keepdims = 1>(a) p = Mul(r, c) e = Div(p, n) d = Sub(a, e) k = Mul(d, most)
           y = ReduceSum<keepdims = 1>(k, second)""",
        {"first": i64(0), "second": i64(1), "most": f32(REST.min(1, keepdims=True) < REST)},
        {"x": LINKS, "w": f32(np.eye(64))},
        "float[64,1] y",
    ),
    "shares at a low temperature": Case(
        "h = MatMul(x, w) d = Div(h, low) y = Softmax<axis = 1>(d)",
        {"low": f32(0.003)},
        {"x": f32(1 + RANDOM.integers(0, 8, (64, 64)) / 128), "w": f32(np.eye(64))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ["optimal", "fine-grained"])
@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_fp32_computes(name, strategy, low):
    assert_as_in_fp32(CASES[name], strategy, low)


def test_the_reason_names_the_reader():
    decision = mixed_of(CASES["log(1 - p), clipped"].model, "fine-grained").plan.decision
    assert decision["Clip"].decided_by is Reason.ACCURACY
    assert "'Log' needs 'c' to within" in decision["Clip"].reason
    assert "fp16 rounds it by 0.00049" in decision["Clip"].reason
