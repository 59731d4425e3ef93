"""More graphs made to break a low precision, one a cause: what comes out is what FP32 computes, or close."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import ArrayLike

from campo_onnx.emulation.numerics import emulate
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine
from tests.optimize.small_steps import mixed_of, model_of, reasons

LOW_INPUT = np.finfo(np.float32).min
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 64)).astype(np.float32)
W = (RANDOM.normal(size=(64, 64)) / 8).astype(np.float32)
M = (RANDOM.random((64, 64)) > 0.5).astype(np.float32)
M_AND_A_ROW = np.maximum(M, np.arange(64)[:, None] == 0).astype(np.float32)
PADDED = np.concatenate([X[:3], np.zeros((61, 64), np.float32)])
EYE = np.eye(64, dtype=np.float32)
POSITIONS = np.arange(64) * 60
COUNTS = (np.arange(64) + 30000).astype(np.float32)
INPUTS = "float[64,64] x, float[64,64] w, float[64,64] m, bool c"
STRATEGIES = ("campo", "fine-grained", "optimal", "tf-amp")
FP16, BF16 = Precision.FP16, Precision.BF16


class Case(NamedTuple):
    """A graph whose result is y, its constants, what it is fed beside the usual, and the allowed error."""

    body: str
    constants: Mapping[str, ArrayLike] = MappingProxyType({})
    y: str = "float[64,64]"
    inputs: str = ""
    feeds: Mapping[str, Any] = MappingProxyType({})
    lows: tuple[Precision, ...] = (FP16,)
    error: float = 0.05


def f(value):
    return np.asarray(value, np.float32)


AXIS = {"ax": [1], "eps": f(1e-12), "one": f(1)}
H = "h = MatMul(x, w) "
VARIANCE = H + "q = Mul(h, h) v = ReduceMean(q, ax) a = Add(v, eps) s = Sqrt(a) i = Reciprocal(s) "
SCORES = "s = MatMul(x, w) "
ADDED = {"inputs": ", float[1,64] add", "feeds": {"add": np.full((1, 64), LOW_INPUT)}}
ROTARY = "cs = Cos(g) sn = Sin(g) a = Mul(x, cs) b = Mul(w, sn) y = Add(a, b)"
FREQUENCIES = f(10000.0 ** (-np.arange(64) / 64))
LOOP = """k = Loop(six, , h)<body = b (int64 i, bool cc, float[64,64] v) => (bool c2, float[64,64] o)
    {{ c2 = Identity(cc) {} }}> d = Div(k, back) y = MatMul(d, w)"""
SIX = {"six": np.int64(6), "ten": f(10), "back": f(1e4)}

CASES = {
    # masks
    "masks that add up": Case(
        SCORES + "a = Mul(m, l) b = Mul(n, l) d = Add(a, b) e = Add(d, d) u = Sub(s, e) y = Softmax(u)",
        {"l": f(30000)}, inputs=", float[64,64] n", feeds={"n": M_AND_A_ROW, "m": M_AND_A_ROW},
    ),
    "a mask input behind Where": Case(
        SCORES + "z = Where(c, add, o) u = Add(s, z) y = Softmax(u)", {"o": f(0)}, **ADDED
    ),
    "a mask input behind Min": Case(
        SCORES + "z = Min(add, tri) u = Add(s, z) y = Softmax(u)", {"tri": np.zeros((64, 64), np.float32)},
        **ADDED,
    ),
    "a mask input and a constant": Case(
        SCORES + "z = Add(add, tri) u = Add(s, z) y = Softmax(u)", {"tri": np.zeros((64, 64), np.float32)},
        **ADDED,
    ),
    # epsilons
    "a scale per channel beside an epsilon": Case(
        VARIANCE + "g = Mul(i, gamma) n = Mul(h, g) y = MatMul(n, w)", AXIS,
        inputs=", float[64] gamma", feeds={"gamma": np.ones(64, np.float32), "x": PADDED},
    ),
    "a batch normalization of given statistics": Case(
        H + "a = Add(v, eps) s = Sqrt(a) g = Div(gamma, s) n = Mul(h, g) y = MatMul(n, w)", AXIS,
        inputs=", float[64] gamma, float[64] v",
        feeds={"gamma": np.ones(64, np.float32), "v": f(np.arange(64) > 3), "w": W * (np.arange(64) > 3)},
    ),
    "an epsilon from a branch": Case(
        H + """q = Mul(h, h) v = ReduceMean(q, ax) e = If(c)<then_branch = t () => (float p) {
        p = Constant<value = float {1e-12}>() }, else_branch = z () => (float o) { o = Identity(eps) }>
        a = Add(v, e) s = Sqrt(a) i = Reciprocal(s) n = Mul(h, i) y = MatMul(n, w)""",
        AXIS | {"eps": f(1e-6)}, feeds={"x": PADDED},
    ),
    # differences of squares
    "a variance as E[x^2] - E[x]^2": Case(
        H + """o = Add(h, off) u = ReduceMean(o, ax) q = Mul(o, o) e = ReduceMean(q, ax) u2 = Mul(u, u)
        v = Sub(e, u2) a = Add(v, eps) s = Sqrt(a) d = Sub(o, u) n = Div(d, s) y = MatMul(n, w)""",
        AXIS | {"off": f(30), "eps": f(1e-5)},
    ),
    "the same in BF16": Case(
        H + """o = Add(h, off) u = ReduceMean(o, ax) q = Mul(o, o) e = ReduceMean(q, ax) u2 = Mul(u, u)
        v = Sub(e, u2) y = Sqrt(v)""",
        AXIS | {"off": f(30)}, "float[64,1]", lows=(BF16,),
    ),
    "a squared distance as |a|^2 - 2ab + |b|^2": Case(
        H + """q = ReduceSumSquare(h, ax) qt = Transpose(q) t = Transpose(h) g = MatMul(h, t)
        g2 = Mul(g, two) a = Add(q, qt) d = Sub(a, g2) r = Max(d, o) y = Sqrt(r)""",
        AXIS | {"two": f(2), "o": f(0)}, feeds={"x": X * 400},
    ),
    "a squared distance, one square at a time": Case(
        H + """q = Mul(h, h) a = ReduceSum(q, ax) p = Mul(w, w) s = ReduceSum(p, ax) b = Reshape(s, row)
        t = Transpose(w) g = MatMul(h, t) g2 = Mul(g, two) u = Sub(a, g2) d = Add(u, b) r = Max(d, o)
        y = Sqrt(r)""",
        AXIS | {"two": f(2), "o": f(0), "row": [1, 64]}, feeds={"x": EYE, "w": W + 8}, lows=(FP16, BF16),
    ),
    "a squared distance, a square as bias": Case(
        H + """q = Mul(h, h) s = ReduceSum(q, ax) a = Reshape(s, row) b = Reshape(s, column)
        g = Gemm<transB=1, alpha=-2.0>(h, h, a) d = Add(g, b) r = Max(d, o) y = Sqrt(r)""",
        {"ax": [1], "o": f(0), "row": [1, 64], "column": [64, 1]}, feeds={"x": EYE, "w": W + 8},
        lows=(FP16, BF16),
    ),
    # close to zero
    "the logarithm of a softmax by hand": Case(
        H + """mx = ReduceMax(h, ax) d = Sub(h, mx) e = Exp(d) t = ReduceSum(e, ax) p = Div(e, t) l = Log(p)
        y = MatMul(l, w)""",
        AXIS, feeds={"x": X * 8},
    ),
    "the logarithm of a softmax and a weight": Case(
        H + "p = Softmax(h) q = Mul(p, n) l = Log(q) y = MatMul(l, w)",
        inputs=", float[64,64] n", feeds={"n": np.ones((64, 64), np.float32), "x": X * 8},
    ),
    "the logarithm of a smallest probability": Case(
        H + "p = Softmax(h) q = ReduceMin(p, ax) y = Log(q)", AXIS, "float[64,1]", feeds={"x": X * 8}
    ),
    "the logarithm of a softplus": Case(
        H + "o = Sub(h, far) p = Softplus(o) l = Log(p) y = MatMul(l, w)", {"far": f(20)}
    ),
    "a sigmoid by tanh": Case(
        H + "t = Tanh(h) a = Add(t, one) p = Mul(a, half) l = Log(p) y = MatMul(l, w)",
        AXIS | {"half": f(0.5)}, feeds={"x": X * 2}, lows=(FP16, BF16),
    ),
    "the gradient of a logarithm": Case(
        H + """p = Softmax(h) g = Div(m, p) gp = Mul(g, p) t = ReduceSum(gp, ax) d = Sub(g, t)
        y = Mul(d, p)""",
        AXIS, feeds={"x": X * 8},
    ),
    "a sigmoid's slope as divisor": Case(
        H + "p = Sigmoid(h) q = Sub(one, p) d = Mul(p, q) r = Div(m, d) y = Mul(r, d)", AXIS,
        feeds={"x": X * 3}, lows=(FP16, BF16),
    ),
    "the gradient of GELU by tanh": Case(
        H + """p = Mul(h, h) q = Mul(p, c1) r = Add(one, q) k = Mul(r, c2) u = Mul(k, h) t = Tanh(u)
        t2 = Mul(t, t) d = Sub(one, t2) y = Mul(d, k)""",
        AXIS | {"c1": f(0.044715), "c2": f(0.79788)}, feeds={"x": X * 300}, error=0.2,
    ),
    "the same with the gradient in the slope": Case(
        H + """p = Mul(h, h) q = Mul(p, c1) k = Mul(h, c2) t = Tanh(k) o = Sub(one, t) a = Mul(m, o)
        b = Mul(a, t) s = Add(a, b) d = Mul(s, c2) e = Mul(d, q) y = MatMul(e, w)""",
        AXIS | {"c1": f(3), "c2": f(0.79788)},
        feeds={"x": X * np.geomspace(0.1, 1000, 64, dtype=np.float32)[:, None]},
    ),
    # sums and norms
    "a mean by a sum and a quotient": Case(
        "h = MatMul(z, w) t = ReduceSum<keepdims=0>(h) k = Div(t, n) y = Add(w, k)", {"n": f(2560 * 64)},
        inputs=", float[2560,64] z",
        feeds={"z": np.abs(RANDOM.normal(size=(2560, 64))).astype(np.float32) * 10, "w": np.abs(W)},
    ),
    "squares added by hand, large": Case(
        "h = MatMul(x, w) a, b = Split<axis=1, num_outputs=2>(h) p = Mul(a, a) q = Mul(b, b) z = Add(p, q)"
        "y = Sqrt(z)", {}, "float[64,32]", feeds={"x": X * 400},
    ),
    "squares added by hand, small": Case(
        "h = MatMul(x, w) a, b = Split<axis=1, num_outputs=2>(h) p = Mul(a, a) q = Mul(b, b) z = Add(p, q)"
        "y = Sqrt(z)", {}, "float[64,32]", feeds={"x": X * np.float32(1e-4)},
    ),
    "the root of a square and an epsilon": Case(
        H + "q = Mul(h, h) a = Add(q, eps) y = Sqrt(a)", AXIS | {"eps": f(1e-3)}, feeds={"x": X * 400}
    ),
    "squares under a window": Case(
        H + "q = Mul(h, h) r = Reshape(q, shape) k = Conv(r, window) y = Sqrt(k)",
        {"shape": [1, 1, 64, 64], "window": np.ones((1, 1, 8, 8), np.float32)}, "float[1,1,57,57]",
        feeds={"x": X * 400},
    ),
    "squares that are scattered": Case(
        H + 'q = Mul(h, h) k = ScatterElements<axis=0, reduction="add">(z, at, q) y = Sqrt(k)',
        {"z": np.zeros((4, 64), np.float32), "at": np.repeat(np.arange(64)[:, None] % 4, 64, 1)},
        "float[4,64]", feeds={"x": X * 400},
    ),
    "the norm of a few values": Case(
        H + "q = ReduceSumSquare(h, ax) r = Sqrt(q) e = Expand(r, shape) n = Div(h, e) y = MatMul(n, w)",
        AXIS | {"shape": [64, 64]}, feeds={"x": X * 10000, "w": EYE},
    ),
    # positions
    "angles of positions as floats": Case(
        "u = Unsqueeze(i, ax) g = Mul(u, freq) " + ROTARY, {"ax": [1], "freq": FREQUENCIES},
        inputs=", float[64] i", feeds={"i": f(POSITIONS)}, lows=(FP16, BF16),
    ),
    "frequencies computed from constants": Case(
        "p = Cast<to=1>(i) u = Unsqueeze(p, ax) k = Mul(ar, c0) e = Exp(k) g = Mul(u, e) y = Sin(g)",
        {"ax": [1], "ar": f(np.arange(64)), "c0": f(-np.log(10000) / 64)},
        inputs=", int64[64] i", feeds={"i": POSITIONS}, lows=(BF16,),
    ),
    "a bias of positions before a softmax": Case(
        SCORES + "p = Cast<to=1>(i) u = Unsqueeze(p, zero) b = Mul(u, half) z = Add(s, b) y = Softmax(z)",
        {"zero": [0], "half": f(0.5)}, inputs=", int64[64] i", feeds={"i": np.arange(64) + 10000},
    ),
    "the same as a table": Case(
        SCORES + "z = Add(s, table) y = Softmax(z)", {"table": f(np.arange(64)[None] * 0.7 + 5000)}
    ),
    "a grid that offsets are added to": Case(
        """i = Range(o, n, e) p = Cast<to=1>(i) u = Unsqueeze(p, ax) a = Mul(u, wide) b = Add(a, x)
        d = Sub(b, a) y = MatMul(d, w)""",
        {"o": np.int64(0), "n": np.int64(64), "e": np.int64(1), "ax": [1], "wide": f(32)},
    ),
    "positions less a large constant": Case(
        "k = CumSum(i, e) p = Cast<to=1>(k) u = Mul(p, half) t = Sub(u, off) y = Exp(t)",
        {"e": np.int64(1), "half": f(0.5), "off": f(4096)}, "float[1,8192]",
        inputs=", int64[1,8192] i", feeds={"i": np.ones((1, 8192), np.int64)},
    ),
    "labels as floats": Case(
        "e = Equal(a, b) k = Cast<to=1>(e) y = MatMul(k, x)", inputs=", float[64,1] a, float[1,64] b",
        feeds={"a": COUNTS[:, None], "b": COUNTS[None]},
    ),
    "positions as floats that are divided": Case(
        "k = Div(i, n) l = Floor(k) j = Cast<to=7>(l) y = Gather(x, j)", {"n": f(101)},
        inputs=", float[64] i", feeds={"i": f(np.arange(64) * 101)},
    ),
    "infinities of an input": Case(
        H + "i = IsInf(n) z = Where(i, o, n) y = Add(h, z)", {"o": f(0)}, inputs=", float[64,64] n",
        feeds={"n": np.where(M > 0, np.inf, 1e5).astype(np.float32)},
    ),
    # sizes
    "tiny constants one after another": Case(
        H + "a = Mul(h, t1) b = Mul(a, t2) r = Relu(b) d = Mul(r, t1) e = Mul(d, up) y = MatMul(e, w)",
        {"t1": f(1e-3), "t2": f(1e-4), "up": f(1e10)},
    ),
    "a product of what two constants made small": Case(
        H + "a = Mul(h, t2) q = Mul(a, h) b = Mul(q, t2) e = Mul(b, up) y = MatMul(e, w)",
        {"t2": f(1e-4), "up": f(1e8)},
    ),
    "large constants around a product": Case(
        H + "a = Mul(h, k) r = MatMul(a, w) b = Mul(r, k) d = Div(b, back) y = MatMul(d, w)",
        {"k": f(1e3), "back": f(1e6)},
    ),
    "a loop that multiplies": Case(H + LOOP.format("o = Mul(v, ten)"), SIX),
    "a loop of products of matrices": Case(
        H + LOOP.format("o = MatMul(v, w2)"), SIX | {"w2": f(np.eye(64) * 10)}
    ),
}  # fmt: skip


def graph_of(case):
    constants = {name: np.asarray(value) for name, value in case.constants.items()}
    return model_of(case.body, constants, inputs=INPUTS + case.inputs, outputs=f"{case.y} y")


@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_fp32_computes(name):
    case, here = CASES[name], machine("cpu")
    model, feeds = graph_of(case), {"x": X, "w": W, "m": M, "c": np.array(True), **case.feeds}
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    expected = run(model, feeds, here)["y"].astype(np.float64)
    for low in case.lows:
        results = [mixed_of(model, strategy, low=low) for strategy in STRATEGIES]
        for mixed in {tuple(sorted(r.plan.low_nodes)): r.model for r in results}.values():
            with np.errstate(all="ignore"):
                difference = run(emulate(mixed), feeds, here)["y"] - expected
            assert np.linalg.norm(difference) <= case.error * np.linalg.norm(expected), low


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a mask input behind Where", Reason.UNKNOWN_MASK),
        ("a squared distance as |a|^2 - 2ab + |b|^2", Reason.CANCELLATION),
        ("the gradient of a logarithm", Reason.DIVISOR),
        ("the gradient of GELU by tanh", Reason.SQUARE_OF_SLOPE),
        ("a mean by a sum and a quotient", Reason.LONG_SUM),
        ("angles of positions as floats", Reason.ANGLE),
        ("the same as a table", Reason.INTEGERS),
        ("tiny constants one after another", Reason.VALUE_UNDERFLOW),
        ("a loop that multiplies", Reason.VALUE_OVERFLOW),
    ],
)
def test_the_plan_says_why(name, reason):
    assert reason in reasons(graph_of(CASES[name])).values()


def test_a_table_of_positions_that_is_compared_holds_integers_and_nothing_too_small():
    compared = Case(
        "b = Less(table, x) k = Cast<to=1>(b) y = MatMul(k, w)", {"table": f(np.arange(64)[None] + 4096)}
    )
    assert reasons(graph_of(compared))["Less"] is Reason.INTEGERS


def low_nodes(body, constants=None):
    return set(mixed_of(graph_of(Case(body, constants or {})), "fine-grained").plan.low_nodes)


def test_what_is_like_them_and_harmless_goes_low():
    sigmoid = H + "n = Neg(h) e = Exp(n) a = Add(one, e) p = Div(one, a) y = MatMul(p, w)"
    assert Reason.DIVISOR not in reasons(graph_of(Case(sigmoid, AXIS))).values()
    bounded = H + LOOP.format("a = MatMul(v, eye) o = Tanh(a)").replace("d = ", "[after] d = ")
    assert "after" in low_nodes(bounded, SIX | {"back": f(2), "eye": EYE})
    mask = SCORES + "[add] u = Add(s, mask) [softmax] y = Softmax(u)"
    assert {"add", "softmax"} <= low_nodes(mask, {"mask": np.triu(np.full((64, 64), -1e4, np.float32), 1)})
    assert "square" in low_nodes(H + "[square] q = Mul(h, h) r = MatMul(q, w) y = Tanh(r)")


STEP = """[fc] h = MatMul(x, w) [mean] loss = ReduceMean<keepdims=0>(h)
    [seed] seed = Mul(share, scale) [dh] dh = Expand(seed, shape) [xt] xt = Transpose<perm=[1,0]>(x)
    [gw] gw = MatMul(xt, dh) [w_out] y = Mul(gw, inverse)"""


def step_with_a_constant_scale(scale):
    constants = {"share": f(1 / 4096), "scale": f(scale), "inverse": f(1 / 1024)}
    constants["shape"] = np.array([64, 64], np.int64)
    return model_of(
        STEP, constants, inputs="float[64,64] x, float[64,64] w", outputs="float loss, float[64,64] y"
    )


def test_a_loss_scale_may_be_a_constant():
    model, here = step_with_a_constant_scale(1024), machine("cpu")
    mixed = mixed_of(model, "fine-grained")
    assert mixed.plan.decision["w_out"].decided_by is Reason.UNSCALED
    assert "gw" in mixed.plan.low_nodes
    assert not mixed.unscaled_gradients
    feeds = {"x": X * np.float32(1e-3), "w": W}
    expected, actual = run(model, feeds, here)["y"], run(emulate(mixed.model), feeds, here)["y"]
    assert np.linalg.norm(actual - expected) < 0.005 * np.linalg.norm(expected)


def test_a_constant_that_nothing_multiplied_before_is_no_loss_scale():
    mixed = mixed_of(step_with_a_constant_scale(2.0), "fine-grained")
    assert mixed.plan.decision["w_out"].decided_by is Reason.UNSCALED
    assert mixed.unscaled_gradients


def test_products_of_an_inference_graph_are_not_called_gradients():
    model = model_of(
        "[fc] h = MatMul(x, w) [s] g = Sigmoid(h) [p] p = Mul(h, g) [mean] y = ReduceSum(p, axes)",
        {"axes": np.array([1], np.int64)},
        inputs="float[64,64] x, float[64,64] w",
        outputs="float[64,1] y",
    )
    decision = mixed_of(model, "fine-grained").plan.decision["p"]
    assert decision.decided_by is Reason.VANISHING_PRODUCT
    assert "gradient" not in decision.reason


def test_products_of_gradient_and_activation_that_are_added_by_hand():
    model = model_of(
        """[fc] h = MatMul(x, w) [relu] a = Relu(h) [mean] loss = ReduceMean<keepdims=0>(a)
           [dz] dz = Expand(share, shape) [wt] wt = Transpose<perm=[1,0]>(w) [back] ds = MatMul(dz, wt)
           [p] p = Mul(ds, a) [q] q = Mul(dz, a) [sum] y = Add(p, q)""",
        {"share": f(1e-4), "shape": np.array([64, 64], np.int64)},
        inputs="float[64,64] x, float[64,64] w",
        outputs="float loss, float[64,64] y",
    )
    here, feeds = machine("cpu"), {"x": X * np.float32(1e-2), "w": W}
    mixed = mixed_of(model, "fine-grained")
    assert mixed.plan.decision["p"].decided_by is Reason.GRADIENT_PRODUCT
    expected, actual = run(model, feeds, here)["y"], run(emulate(mixed.model), feeds, here)["y"]
    assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


def test_a_long_chain_of_masks_is_looked_at_once():
    chain = " ".join(f"t{i + 1} = Where(c, t{i}, zero)" for i in range(1500))
    model = graph_of(Case(f"t0 = MatMul(x, w) {chain} y = Identity(t1500)", {"zero": f(0)}))
    assert reasons(model)["MatMul"] is Reason.MARGIN_LOW
