"""Means that are taken off, over samples or weighted by shares: gradients of them are as in FP32."""

import numpy as np
import pytest

from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from tests.optimize.formulas import RANDOM, Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import both, mixed_of, reasons

FP16, BF16 = Precision.FP16, Precision.BF16
SIDE = {
    "zero": i64(0), "ax": i64(1), "two": i64(2), "both": i64(0, 2), "all": i64(0, 1), "o": f32(0),
    "ones": f32(np.ones((1, 64))), "column": f32(np.ones((64, 1))), "vector": f32(np.ones(64)),
    "shares": f32(np.full((64, 64), -1 / 64)), "few": f32(0.1), "eps": f32(1e-3), "count": f32(64),
    "row": i64(1, 64), "parts": i64(8, -1, 64), "variances": f32(np.ones(64)), "means": f32(np.zeros(64)),
    "channels": i64(1, 64, 1), "every": i64(4, 64, 1), "less": f32(-1 / 256), "square": i64(64, 64),
    "every_one": f32(np.ones((64, 64))),
}  # fmt: skip
MASK = f32(RANDOM.random((64, 64)) > 0.5)
OUTPUTS = "float[64,64] y, float loss"

# The loss is that of the forward pass; columns of values and rows of keys have much in common.
ALIKE = {
    "x": normal(64, 64), "w": normal(64, 64, size=1 / 8), "n": MASK, "v": normal(64, 64, mean=1),
    "k": normal(64, 64, size=1 / 4, mean=1), "scale": f32(16),
}  # fmt: skip
SHARES = "h = MatMul(x, w) p = Softmax(h) "
BY_HAND = "h = MatMul(x, w) a = ReduceMax(h, ax) f = Sub(h, a) e = Exp(f) s = {} p = Div(e, s) "
BACKWARD = "z = MatMul(p, v) loss = ReduceMean<keepdims=0>(z) dz = Mul(n, scale) g = MatMul(dz, v) "
ATTENDED = BACKWARD.replace("g = MatMul(dz, v)", "vt = Transpose(v) g = MatMul(dz, vt)")
REMOVED = "u = Mul(p, t) d = Sub(q, u) y = MatMul(d, k)"
BY_SHARES = {
    "the exponential of a logarithm": SHARES.replace("p = Softmax(h)", "l = LogSoftmax(h) p = Exp(l)")
    + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "the exponential of what is left without a logarithm": SHARES.replace(
        "p = Softmax(h)", "a = ReduceLogSumExp(h, ax) l = Sub(h, a) p = Exp(l)"
    ) + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "the same by hand": BY_HAND.format("ReduceSum(e, ax) b = Log(s) c = Add(a, b) i = Sub(h, c)")
    .replace("p = Div(e, s)", "p = Exp(i)") + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "the gradient of a softmax": SHARES + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "behind a mask of rows": SHARES.replace(" p =", " a =")
    + "b = ReduceMax(h, ax) r = Less(b, o) p = Where(r, o, a) "
    + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "fused": SHARES + BACKWARD
    + "q = Mul(g, p) t = ReduceSum(q, ax) e = Neg(t) d = com.microsoft.GatedAdd(q, p, e) y = MatMul(d, k)",
    "the shares in front": SHARES + BACKWARD
    + "q = Mul(p, g) t = ReduceSum(q, ax) d = Sub(g, t) u = Mul(p, d) y = MatMul(u, k)",
    "the sum by ones": SHARES + BACKWARD + "q = Mul(g, p) t = MatMul(q, column) " + REMOVED,
    "the sum of a transposition": SHARES + BACKWARD
    + "q = Mul(g, p) i = Transpose(q) j = ReduceSum(i, zero) t = Transpose(j) " + REMOVED,
    "the sum of two factors": SHARES + BACKWARD
    + 'q = Mul(g, p) i = Einsum<equation="ij,ij->i">(g, p) t = Unsqueeze(i, ax) ' + REMOVED,
    "the sum by products of rows": SHARES + BACKWARD
    + "q = Mul(g, p) i = Unsqueeze(g, ax) j = Unsqueeze(p, two) m = MatMul(i, j) t = Squeeze(m, two) "
    + REMOVED,
    "a softmax by hand": BY_HAND.format("ReduceSum(e, ax)") + BACKWARD
    + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "a softmax by hand and ones": BY_HAND.format("MatMul(e, column)") + BACKWARD
    + "q = Mul(g, p) t = MatMul(q, column) " + REMOVED,
    "a softmax by hand beside an epsilon": BY_HAND.format("ReduceSum(e, ax) b = Add(s, eps)")
    .replace("(e, s)", "(e, b)") + BACKWARD + "q = Mul(g, p) t = ReduceSum(q, ax) " + REMOVED,
    "by hand, backward too": BY_HAND.format("ReduceSum(e, ax)") + BACKWARD
    + """q = Div(g, s) c = Mul(g, e) b = Mul(s, s) i = Reciprocal(b) r = Mul(c, i) j = Neg(r)
    t = ReduceSum(j, ax) u = Add(q, t) d = Mul(u, e) y = MatMul(d, k)""",
}  # fmt: skip

# The sum as FlashAttention has it, of the attention's output; that is a product, and rounded.
BY_OUTPUT = {
    "by hand": SHARES + ATTENDED
    + "q = Mul(dz, z) t = ReduceSum(q, ax) d = Sub(g, t) u = Mul(p, d) y = MatMul(u, k)",
    "behind a dropout": SHARES
    + ATTENDED.replace("MatMul(p, v)", "MatMul(a, v)").replace("z =", "a, kept = Dropout(p, few) z =", 1)
    + """q = Mul(z, dz) t = ReduceSum(q, ax) c = Neg(t) i = Where(kept, g, o) j = Add(i, c) d = Mul(p, j)
    y = MatMul(d, k)""",
    "of a softmax by hand": BY_HAND.format("ReduceSum(e, ax)") + ATTENDED
    + "q = Mul(dz, z) t = ReduceSum(q, ax) d = Sub(g, t) u = Mul(p, d) y = MatMul(u, k)",
    "by Einsum": SHARES + ATTENDED
    + """q = Einsum<equation="ij,ij->i">(dz, z) t = Unsqueeze(q, ax) u = Mul(p, t) i = Mul(g, p) d = Sub(i, u)
    y = MatMul(d, k)""",
}  # fmt: skip
LESS_ALIKE = ALIKE | {"v": normal(64, 64, mean=0.5)}

COMMON = {
    "x": normal(64, 64, mean=4), "w": ALIKE["w"], "m": MASK, "v": normal(64, 64, size=1 / 4, mean=1),
    "scale": f32(16), "share": f32(1 / 64),
}  # fmt: skip
GRADIENT = "h = MatMul(x, w) loss = ReduceMean<keepdims=0>(h) dz = Mul(m, scale) g = MatMul(dz, v) "
OF_WEIGHTS = " xt = Transpose<perm=[1,0]>(x) y = MatMul(xt, d)"
OVER_SAMPLES = {
    "by hand": "t = ReduceSum(g, zero) q = Div(t, count) d = Sub(g, q)",
    "reshaped": "t = ReduceSum<keepdims=0>(g, zero) q = Div(t, count) r = Reshape(q, row) d = Sub(g, r)",
    "by a batch normalization": """t = ReduceSum<keepdims=0>(g, zero) q = Div(t, count)
    d = BatchNormalization<epsilon=0.0>(g, variances, means, q, variances)""",
    "beside a term whose mean is zero": """mu = ReduceMean(x, zero) b = Sub(x, mu) s = Mul(b, few) i = Neg(g)
    t = ReduceMean(i, zero) q = Add(s, g) d = Add(q, t)""",
    "in two parts, times a number that is an input": """r = Reshape(g, parts) a = ReduceSum<keepdims=0>(r, ax)
    t = ReduceSum(a, zero) q = Mul(t, share) d = Sub(g, q)""",
    "of a transposition": """i = Transpose(g) t = ReduceSum<keepdims=0>(i, ax) q = Div(t, count)
    d = Sub(g, q)""",
    "off a transposition": """i = Transpose(g) t = ReduceSum(i, ax) q = Div(t, count) j = Sub(i, q)
    d = Transpose(j)""",
    "by ones": "t = MatMul(ones, g) q = Div(t, count) d = Sub(g, q)",
    "by a vector of ones": "t = MatMul(vector, g) q = Div(t, count) d = Sub(g, q)",
    "by ones behind": """i = Transpose(g) t = MatMul(i, column) u = Transpose(t) q = Div(u, count)
    d = Sub(g, q)""",
    "by Gemm": "t = Gemm<transA=1>(g, column) u = Transpose(t) q = Div(u, count) d = Sub(g, q)",
    "by a matrix of shares": "t = MatMul(shares, g) d = Add(t, g)",
    "by Einsum": 't = Einsum<equation="ij->j">(g) q = Div(t, count) d = Sub(g, q)',
    "of the negative by a difference": "i = Sub(o, g) t = ReduceMean(i, zero) d = Add(g, t)",
    "of a sum with zero": "i = Add(g, o) t = ReduceMean(i, zero) d = Sub(g, t)",
    "by Gemm and its factor": "t = Gemm<alpha=-0.015625>(every_one, g) d = Add(g, t)",
    "by Gemm and a zero": "t = Gemm(ones, g, o) q = Div(t, count) d = Sub(g, q)",
    "by Einsum and ones": 't = Einsum<equation="n,nc->c">(vector, g) q = Div(t, count) d = Sub(g, q)',
}
CHANNELS = {
    "x": normal(4, 64, 64, mean=10), "w": ALIKE["w"], "g": normal(4, 64, 64, size=1 / 4, mean=1),
    "gamma": normal(64, size=1 / 8, mean=1), "n": normal(4, 64, 64), "scale": f32(16),
}  # fmt: skip
SCALED = """h = MatMul(w, x) loss = ReduceMean<keepdims=0>(h) dh = Mul(g, scale) b = Mul(n, few) {}
    p = Mul(gamma, s) q = Mul(p, less) r = Reshape(q, channels) c = Add(b, r) i = Reshape(gamma, channels)
    j = Expand(i, every) d = com.microsoft.GatedAdd(c, dh, j) y = Einsum<equation="ncl,nkl->ck">(d, x)"""

CASES = {
    **{f"shares: {name}": Case(body, SIDE, ALIKE, OUTPUTS) for name, body in BY_SHARES.items()},
    **{f"output: {name}": Case(body, SIDE, LESS_ALIKE, OUTPUTS) for name, body in BY_OUTPUT.items()},
    **{
        f"samples: {name}": Case(GRADIENT + body + OF_WEIGHTS, SIDE, COMMON, OUTPUTS)
        for name, body in OVER_SAMPLES.items()
    },
    "samples and positions": Case(
        SCALED.format("s = ReduceSum<keepdims=0>(dh, both)"), SIDE, CHANNELS, OUTPUTS
    ),
    "positions, then samples": Case(
        SCALED.format("t = ReduceSum(dh, two) s = ReduceSum<keepdims=0>(t, both)"), SIDE, CHANNELS, OUTPUTS
    ),
}
# A mean over the positions of each sample: only their number tells that the last axis is none of features.
CASES["positions"] = Case(
    """c = Conv(x, filters) loss = ReduceMean<keepdims=0>(c) dh = Mul(g, scale) t = ReduceMean(dh, two)
    d = Sub(dh, t) y = Einsum<equation="ncl,nkl->ck">(d, x)""",
    SIDE, {**CHANNELS, "filters": normal(64, 64, 1)}, OUTPUTS,
)  # fmt: skip
# The mean of a product that a row is a factor of, taken off the same product, computed again.
CASES["samples: of a product"] = Case(
    GRADIENT + """i = Transpose(g) k = Mul(x, x) l = ReduceMean(k, zero) u = Reciprocal(l) r = Transpose(u)
    p = Mul(i, r) t = ReduceSum(p, ax) q = Div(t, count) e = Neg(q) f = Expand(e, square)
    j = com.microsoft.GatedAdd(f, i, r) d = Transpose(j)""" + OF_WEIGHTS,
    SIDE, COMMON, OUTPUTS,
)  # fmt: skip

# Products for each sample, summed: the gradient of a convolution's weight before a batch normalization.
EACH = {
    "x": normal(64, 64, 64, mean=10), "w": ALIKE["w"], "n": normal(64, 64, 64) + normal(64, 64, 1),
    "gamma": normal(64, 1, size=1 / 8, mean=1), "scale": f32(16),
}  # fmt: skip
CENTERED = """h = MatMul(w, x) loss = ReduceMean<keepdims=0>(h) g = Mul(n, scale)
    t = ReduceMean<keepdims=1>(g, {}) d = Sub(g, t) """
PRODUCTS = {
    "MatMul": "i = Transpose<perm=[0,2,1]>(x) p = MatMul(d, i) y = ReduceSum<keepdims=0>(p, zero)",
    "FusedMatMul": "p = com.microsoft.FusedMatMul<transB=1>(d, x) y = ReduceSum<keepdims=0>(p, zero)",
    "Einsum": 'p = Einsum<equation="ncl,nkl->nck">(d, x) y = ReduceSum<keepdims=0>(p, zero)',
    "turned": """i = Transpose<perm=[0,2,1]>(d) p = MatMul(x, i) q = Transpose<perm=[2,1,0]>(p)
    y = ReduceSum<keepdims=0>(q, two)""",
    "scaled and padded": """c = Mul(d, gamma) i = Pad(c, pads) u = Pad(x, pads)
    p = com.microsoft.FusedMatMul<transB=1>(i, u) y = ReduceSum<keepdims=0>(p, zero)""",
}
SIDE["pads"] = i64(0, 0, 1, 0, 0, 1)
FOR_EACH = {name: Case(CENTERED.format("both") + y, SIDE, EACH, OUTPUTS) for name, y in PRODUCTS.items()}
CASES |= {f"a product for each sample: {name}": case for name, case in FOR_EACH.items()}


def exact(case):
    return {name for name, reason in reasons(case.model).items() if reason is Reason.REMOVED_MEAN}


@pytest.mark.parametrize("low", [FP16, BF16])
@pytest.mark.parametrize("name", CASES)
def test_what_a_mean_leaves_is_what_fp32_computes(name, low):
    assert_as_in_fp32(CASES[name], "fine-grained", low)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_why(name):
    assert exact(CASES[name])


def test_of_the_gradient_of_a_softmax_shares_sum_what_it_multiplies_and_difference_stay_fp32():
    names = {"Softmax", "ReduceSum", "Mul_2", "Sub"}  # a, t, u and d
    assert exact(CASES["shares: behind a mask of rows"]) == names


def test_shares_that_are_alike_are_not_rounded():
    feeds = ALIKE | {"x": normal(64, 64, size=0.1)}
    case = Case(BY_SHARES["the gradient of a softmax"], SIDE, feeds, OUTPUTS)
    expected, actual, _ = both(case.model, case.feeds, "fine-grained", low=BF16)
    assert relative_l2(actual["y"], expected["y"]) < 0.022  # 0.03 with rounded shares


def test_the_gradient_of_a_softmax_in_one_node_reads_exact_shares():
    body = SHARES + BACKWARD + "d = com.microsoft.SoftmaxGrad_13<axis=-1>(g, p) y = MatMul(d, k)"
    assert exact(Case(body, SIDE, ALIKE, OUTPUTS)) == {"Softmax", "SoftmaxGrad_13"}


@pytest.mark.parametrize("low", [FP16, BF16])
@pytest.mark.parametrize("shares", ["p = Exp(l)", "p = Softmax(h)"])
def test_the_gradient_of_a_logarithm_of_shares_reads_an_exact_sum(shares, low):
    """Distillation: shares are close to the teacher's, and the sum of a row is 1/292."""
    random = np.random.default_rng(32)
    logits = random.integers(-3, 4, (64, 64))
    e = np.exp(logits + random.normal(size=64) * 0.01)
    body = f"""l = LogSoftmax(h) m = Mul(t, l) s = ReduceSum<keepdims=0>(m) loss = Neg(s) {shares}
        g = Mul(t, less) a = ReduceSum(g, ax) u = Mul(p, a) d = Sub(u, g) y = MatMul(k, d)"""
    feeds = {"h": f32(logits), "t": f32(e / e.sum(1, keepdims=True)), "k": f32(np.ones((64, 64)))}
    case = Case(body, {"ax": i64(1), "less": f32(1 / 292)}, feeds, OUTPUTS)
    assert_as_in_fp32(case, "fine-grained", low)


def test_the_gradient_of_a_logarithm_of_shares_may_go_low_where_a_row_has_one_label():
    """The label and the sum of its row are rounded alike, and tables of words are large."""
    body = """l = LogSoftmax(h) m = GatherElements<axis=1>(l, i) loss = ReduceMean<keepdims=0>(m) p = Exp(l)
        zeros = Mul(h, o) v = Mul(m, o) u = Add(v, less) g = ScatterElements<axis=1>(zeros, i, u)
        a = ReduceSum(g, ax) b = Mul(p, a) d = Sub(b, g) y = MatMul(k, d)"""
    feeds = {"h": normal(64, 64), "i": np.arange(64)[:, None], "k": normal(64, 64)}
    case = Case(body, {"ax": i64(1), "less": f32(1 / 300), "o": f32(0)}, feeds, OUTPUTS)
    assert Reason.REMOVED_MEAN not in reasons(case.model).values()


def test_what_scales_a_gradient_and_its_mean_stays_fp32_with_them():
    names = {"ReduceSum", "Mul_2", "Mul_3", "Reshape", "Add", "Reshape_1", "Expand", "GatedAdd"}
    assert exact(CASES["samples and positions"]) == names  # s, p, q, r, c, i, j and d


def test_a_mean_that_a_layer_normalization_gives_counts():
    body = "i = Transpose(g) n, mu = LayerNormalization(i, variances) t = Transpose(mu) d = Sub(g, t)"
    assert exact(Case(GRADIENT + body + OF_WEIGHTS, SIDE, COMMON, OUTPUTS)) == {"Transpose_1", "Sub"}  # t, d


@pytest.mark.parametrize("name", FOR_EACH)
def test_products_for_each_sample_stay_fp32_up_to_their_sum(name):
    case = FOR_EACH[name]
    named = {n.output[0]: n.name for n in mixed_of(case.model, "fine-grained").imported.model.graph.node}
    moved = {named["q"]} if "q" in named else set()
    assert exact(case) == {named[t] for t in ("t", "d", "p", "y")} | moved


@pytest.mark.parametrize(
    ("mean", "factor"),
    [
        ("two", "b = Conv(x, filters)"),  # of each sample, so that its product is small
        ("both", "a = ReduceMean<keepdims=1>(x, both) c = Sub(x, a) b = Relu(c)"),  # little in common
    ],
)
def test_other_products_for_each_sample_go_low(mean, factor):
    body = factor + " i = Transpose<perm=[0,2,1]>(b) p = MatMul(d, i) y = ReduceSum<keepdims=0>(p, zero)"
    case = Case(CENTERED.format(mean) + body, SIDE, EACH | {"filters": normal(64, 64, 1)}, OUTPUTS)
    assert_as_in_fp32(case, "fine-grained", BF16)
    decided = {d.node: d.decided_by for d in mixed_of(case.model, "fine-grained").plan.decisions}
    assert decided["ReduceMean_1"] is Reason.REMOVED_MEAN is not decided["MatMul_1"]


def test_means_of_an_inference_graph_go_low():
    body = GRADIENT.replace("loss = ReduceMean<keepdims=0>(h)", "") + OVER_SAMPLES["by hand"] + OF_WEIGHTS
    assert not exact(Case(body, SIDE, COMMON))


def test_a_reduction_of_unknown_shape_is_planned():
    body = "b = Greater(x, o) c = Compress(x, b) t = ReduceMean<keepdims=1>(c, zero) y = Add(x, t)"
    assert not exact(Case(body, SIDE, COMMON))


@pytest.mark.parametrize(
    "body",
    [
        "t = ReduceMean(g, ax) d = Sub(g, t)",  # over features
        "t = ReduceMean(g, all) d = Sub(g, t)",  # of everything
        "t = ReduceMean(g, zero) d = Add(g, t)",  # nothing cancels
        "t = MatMul(shares, g) d = Sub(g, t)",
        "i = Neg(g) t = ReduceMean(i, zero) d = Sub(g, t)",
        "t = MatMul(v, g) d = Sub(g, t)",  # no mean
    ],
)
def test_what_is_like_them_and_harmless_goes_low(body):
    assert not exact(Case(GRADIENT + body + OF_WEIGHTS, SIDE, COMMON, OUTPUTS))


@pytest.mark.parametrize(
    ("shape", "order", "axes"),
    [
        ([4, 64, 64], [0, 2, 1], [2]),  # of the channels of each position
        ([4, 64, 8, 8], [0, 1, 2, 3], [0, 2, 3]),  # of images
        ([4, 64, 8, 8], [0, 1, 2, 3], [2, 3]),
    ],
)
def test_means_over_channels_and_images_go_low(shape, order, axes):
    body = f"""h = MatMul(x, w) loss = ReduceMean<keepdims=0>(h) r = Reshape(g, shape)
        i = Transpose<perm={order}>(r) t = ReduceMean(i, axes) d = Sub(i, t) k = Mul(d, scale)
        y = Reshape(k, every)"""
    constants = {"axes": i64(*axes), "shape": i64(*shape), "every": i64(256, 64)}
    assert not exact(Case(body, constants, CHANNELS, "float[256,64] y, float loss"))


@pytest.mark.parametrize(
    "mean", ["m = ReduceMean(i, two)", "e, m = LayerNormalization<axis=2>(i, variances)"]
)
def test_means_over_images_go_low_sample_by_sample_too(mean):
    body = f"""h = MatMul(x, w) loss = ReduceMean<keepdims=0>(h) c = Mul(image, scale) i = Reshape(c, shape)
        {mean} t = ReduceMean(m, zero) d = Sub(i, t) k = Mul(d, scale) y = Reshape(k, every)"""
    constants = SIDE | {"shape": i64(4, 64, 64), "every": i64(256, 64)}
    feeds = CHANNELS | {"image": normal(4, 64, 8, 8)}
    assert not exact(Case(body, constants, feeds, "float[256,64] y, float loss"))


def test_the_names_of_products_do_not_grow():
    """Each of these would be twice as long as the one before."""
    body = " ".join(f"h{i + 1} = MatMul(h{i}, h{i})" for i in range(64))
    assert not exact(Case(body, {}, {"h0": normal(4, 4)}, "float[4,4] h64"))


def test_logarithms_of_shares_are_walked_once(monkeypatch):
    """Each of these begins where the one before ends."""
    visits = 0
    visited = Walk.__iter__

    def counted(walk):
        nonlocal visits
        for one in visited(walk):
            visits += 1
            yield one

    monkeypatch.setattr(Walk, "__iter__", counted)
    per_step = []
    for steps in (20, 80):
        visits = 0
        body = " ".join(
            f"""l{i} = ReduceLogSumExp(h{i}, ax) h{i + 1} = Sub(h{i}, l{i}) p{i} = Exp(h{i + 1})
            q{i} = Mul(p{i}, g) s{i} = ReduceSum(q{i}, ax) u{i} = Mul(p{i}, s{i}) y{i} = Sub(q{i}, u{i})"""
            for i in range(steps)
        )
        case = Case(body, {"ax": i64(1)}, {"h0": normal(4, 4), "g": normal(4, 4)}, f"float[4,4] y{steps - 1}")
        assert exact(case)
        per_step.append(visits / steps)
    assert per_step[1] < 1.5 * per_step[0]
