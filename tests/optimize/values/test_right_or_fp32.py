"""A mixed graph computes what it does in FP32: values that FP16 does not hold stay FP32.

Every case is small, so a device is made up on which low precision pays for every node.
"""

import numpy as np
import pytest

from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.values.ranges import DeclaredRange
from tests.optimize.small_steps import STEADY, both, mixed_of, model_of, reasons

B, H, S, D = 2, 2, 16, 8


def attention(mask_nodes, constants, *, mask_input="int64[2,16] mask"):
    """Scores, a mask that is added, a softmax, a product: large enough for tensor cores to pay."""
    body = f"""
        {mask_nodes}
        [scores] scores = MatMul(q, k)
        [masked] masked = Add(scores, bias)
        [softmax] p = Softmax<axis=-1>(masked)
        [context] y = MatMul(p, v)
    """
    inputs = f"float[2,2,16,8] q, float[2,2,8,16] k, float[2,2,16,8] v, {mask_input}"
    return model_of(body, constants, inputs=inputs, outputs="float[2,2,16,8] y")


def attention_feeds(mask):
    random = np.random.default_rng(0)
    return {
        "q": random.normal(size=(B, H, S, D)).astype(np.float32),
        "k": random.normal(size=(B, H, D, S)).astype(np.float32),
        "v": random.normal(size=(B, H, S, D)).astype(np.float32),
        "mask": mask,
    }


AXES = {"axes": np.array([1, 2], np.int64), "one": np.float32(1.0), "zero": np.float32(0.0)}
EXPANDED = "e = Unsqueeze(m, axes)"
INVERTED = f"[c] m0 = Cast<to=1>(mask) [b] m = Sub(one, m0) {EXPANDED}"
MASKS = {
    "cast of int64": (
        f"{INVERTED} [f] f = Cast<to=1>(fill) [m] bias = Mul(e, f)",
        {"fill": np.int64(-1_000_000_000)},
    ),
    "cast of a double": (
        f"{INVERTED} [f] f = Cast<to=1>(fill) [m] bias = Mul(e, f)",
        {"fill": np.float64(-3.4e38)},
    ),
    "expanded": (
        f"""{INVERTED}
            [f] f0 = Cast<to=1>(fill) [x] f = Expand(f0, shape) [m] bias = Mul(e, f)""",
        {"fill": np.int64(-1_000_000_000), "shape": np.array([2, 1, 1, 16], np.int64)},
    ),
    "filled": (
        f"""[c] m0 = Cast<to=9>(mask) [b] m = Not(m0) {EXPANDED}
            [f] f = ConstantOfShape<value=float[1] {{-1e9}}>(shape) [m] bias = Where(e, f, zero)""",
        {"shape": np.array([2, 1, 1, 16], np.int64)},
    ),
    "arithmetic": (
        f"""{INVERTED} [f] f0 = Cast<to=1>(fill)
            [n] f1 = Neg(f0) [g] f2 = Sqrt(square) [h] f = Mul(f1, f2) [m] bias = Mul(e, f)""",
        {"fill": np.int32(30_000), "square": np.float32(9e8)},
    ),
    "concatenated": (
        f"""{INVERTED} [f] f0 = Cast<to=1>(fill)
            [k] f1 = Concat<axis=0>(f0, f0) [g] f = Slice(f1, start, end) [m] bias = Mul(e, f)""",
        {"fill": np.array([-1e12]), "start": np.array([0], np.int64), "end": np.array([1], np.int64)},
    ),
}


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("case", MASKS)
def test_a_mask_survives_whatever_computes_it(case, strategy):
    nodes, constants = MASKS[case]
    mask = np.ones((B, S), np.int64)
    mask[0, 5:], mask[1, :] = 0, 0
    model = attention(nodes, AXES | constants)
    expected, actual, _ = both(model, attention_feeds(mask), strategy)
    np.testing.assert_allclose(actual["y"], expected["y"], atol=0.02)


def test_the_reason_names_the_constant_and_its_value():
    nodes, constants = MASKS["cast of int64"]
    plan = mixed_of(attention(nodes, AXES | constants), "optimal").plan
    reason = next(decision.reason for decision in plan.decisions if decision.node == "masked")
    assert "-1e+09" in reason
    assert "'fill'" in reason


def test_a_user_who_keeps_one_node_fp32_makes_the_rest_no_less_safe():
    nodes, constants = MASKS["cast of int64"]
    model = attention(nodes, AXES | constants)
    before = set(mixed_of(model, "fine-grained").plan.low_nodes)
    after = set(mixed_of(model, "fine-grained", keep_fp32=("m",)).plan.low_nodes)
    assert after == before - {"m"}


@pytest.mark.parametrize("strategy", STEADY)
def test_a_mask_that_is_an_output_keeps_its_value(strategy):
    model = model_of(
        "[f] f = Cast<to=1>(fill) [m] m = Mul(x, f) [t] t = Transpose<perm=[1,0]>(m) [y] y = MatMul(x, w)",
        {"fill": np.int64(-1_000_000_000)},
        inputs="float[16,16] x, float[16,16] w",
        outputs="float[16,16] t, float[16,16] y",
    )
    feeds = {"x": np.ones((16, 16), np.float32), "w": np.ones((16, 16), np.float32)}
    expected, actual, _ = both(model, feeds, strategy)
    np.testing.assert_array_equal(actual["t"], expected["t"])


def normalization(epsilon):
    """A layer normalization in pieces between two products, as exporters without the operator write it."""
    return model_of(
        """[in] h = MatMul(x, w)
           [mean] mean = ReduceMean(h, axes)
           [d] d = Sub(h, mean)
           [square] s = Mul(d, d)
           [variance] v = ReduceMean(s, axes)
           [add] a = Add(v, epsilon)
           [root] r = Sqrt(a)
           [inverse] i = Reciprocal(r)
           [scale] n = Mul(d, i)
           [out] y = MatMul(n, w)""",
        {"axes": np.array([-1], np.int64), "epsilon": np.float32(epsilon)},
        inputs="float[16,64] x, float[64,64] w",
        outputs="float[16,64] y",
    )


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 1e-5])
def test_a_row_without_variance_is_normalized_to_zero(epsilon, strategy):
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 64)).astype(np.float32)
    x[3:] = 0  # padding
    feeds = {"x": x, "w": random.normal(size=(64, 64)).astype(np.float32) / 8}
    expected, actual, _ = both(normalization(epsilon), feeds, strategy)
    np.testing.assert_allclose(actual["y"], expected["y"], atol=0.05)


def test_an_epsilon_that_fp16_holds_costs_nothing():
    low = mixed_of(normalization(1e-3), "fine-grained").plan.low_nodes
    assert "scale" in low
    assert "scale" not in mixed_of(normalization(1e-12), "fine-grained").plan.low_nodes


NORM = """[loss] loss = ReduceMax<keepdims=0>(x) [out] g = MatMul(x, w) [square] s = {square}
          [sum] n2 = ReduceSum<keepdims=0>(s)
          [root] norm = Sqrt(n2)"""


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("square", ["Mul(g, g)", "Pow(g, two)", "Mul(g, n)"])
@pytest.mark.parametrize("size", [1e-4, 400.0])
def test_a_gradient_norm_is_that_of_fp32(square, size, strategy):
    body = NORM.format(square=square).replace("[square]", "[same] n = Identity(g) [square]")
    model = model_of(
        body,
        {"two": np.float32(2.0)},
        inputs="float[32,32] x, float[32,32] w",
        outputs="float loss, float[32,32] g, float norm",
    )
    random = np.random.default_rng(0)
    feeds = {
        "x": (random.normal(size=(32, 32)) * size).astype(np.float32),
        "w": np.eye(32, dtype=np.float32),
    }
    expected, actual, _ = both(model, feeds, strategy)
    np.testing.assert_allclose(actual["norm"], expected["norm"], rtol=0.01)


@pytest.mark.parametrize("strategy", STEADY)
def test_clipping_by_the_global_norm_keeps_the_gradient(strategy):
    model = model_of(
        NORM.format(square="Mul(g, g)")
        + " [guard] safe = Add(norm, epsilon) [ratio] c = Div(most, safe) [least] f = Min(c, one)"
        + " [clip] clipped = Mul(g, f) [next] y = MatMul(clipped, w)",
        {"epsilon": np.float32(1e-6), "most": np.float32(1.0), "one": np.float32(1.0)},
        inputs="float[32,32] x, float[32,32] w",
        outputs="float loss, float[32,32] y",
    )
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(32, 32)).astype(np.float32) * 400, "w": np.eye(32, dtype=np.float32)}
    expected, actual, _ = both(model, feeds, strategy)
    np.testing.assert_allclose(actual["y"], expected["y"], atol=1e-3)


@pytest.mark.parametrize("strategy", STEADY)
def test_a_product_of_gradient_and_activation_is_summed_in_fp32(strategy):
    """The gradient of a scale per channel: neither factor is normalized, and nothing scales the loss."""
    model = model_of(
        """[fc] h = MatMul(x, w) [relu] a = Relu(h) [scaled] s = Mul(a, scale) [head] z = MatMul(s, u)
           [mean] loss = ReduceMean<keepdims=0>(z)
           [dz] dz = Expand(share, shape) [ut] ut = Transpose<perm=[1,0]>(u) [back] ds = MatMul(dz, ut)
           [product] p = Mul(ds, a) [sum] gradient = ReduceSum<keepdims=0>(p, axis)""",
        {"share": np.float32(5e-4), "shape": np.array([64, 16], np.int64), "axis": np.array([0], np.int64)},
        inputs="float[64,32] x, float[32,32] w, float[32] scale, float[32,16] u",
        outputs="float loss, float[32] gradient",
    )
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(64, 32)).astype(np.float32) * 1e-2,
        "w": random.normal(size=(32, 32)).astype(np.float32) * 1e-1,
        "scale": np.ones(32, np.float32),
        "u": random.normal(size=(32, 16)).astype(np.float32) * 1e-1,
    }
    expected, actual, _ = both(model, feeds, strategy)
    error = np.linalg.norm(actual["gradient"] - expected["gradient"]) / np.linalg.norm(expected["gradient"])
    assert error < 0.01


POSITIONS = {
    "back to integers": "[add] g = Add(f, half) [mul] h = Mul(g, two) [back] j = Cast<to=7>(h)",
    "compared": "[sub] g = Sub(f, column) [eq] e = Equal(g, half) [back] j = Cast<to=7>(e)",
    "counted": "[r] g = Reshape(f, shape) [floor] h = Floor(g) [back] j = Cast<to=7>(h)",
}


@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("case", POSITIONS)
def test_integers_stay_integers(case, strategy):
    model = model_of(
        "[c] f = Cast<to=1>(i) " + POSITIONS[case] + " [y] y = MatMul(x, x)",
        {
            "half": np.float32(1.0),
            "two": np.float32(2.0),
            "column": np.arange(4095, -1, -1).astype(np.float32),
            "shape": np.array([64, 64], np.int64) if case == "counted" else np.array([4096], np.int64),
        },
        inputs="int64[4096] i, float[16,16] x",
        outputs=("int64[64,64] j" if case == "counted" else "int64[4096] j") + ", float[16,16] y",
    )
    feeds = {"i": np.arange(4096), "x": np.ones((16, 16), np.float32)}
    expected, actual, _ = both(model, feeds, strategy)
    np.testing.assert_array_equal(actual["j"], expected["j"])


def test_small_integers_may_go_low():
    """Pixels are integers up to 255, which FP16 holds."""
    model = model_of(
        "[c] f = Cast<to=1>(i) [add] g = Add(f, f) [eq] e = Greater(g, f) [back] b = Cast<to=1>(e)",
        inputs="uint8[64,64] i",
        outputs="float[64,64] b",
    )
    assert {"add", "eq"} <= set(mixed_of(model, "fine-grained").plan.low_nodes)


ADDED = "[e] bias = Expand(mask, shape)"
FLOAT_MASK = {"mask_input": "float[2,1,16,16] mask"}


@pytest.mark.parametrize("strategy", STEADY)
def test_an_added_mask_that_is_an_input_keeps_its_softmax(strategy):
    mask = np.zeros((B, 1, S, S), np.float32)
    mask[0, :, :, 5:], mask[1] = np.finfo(np.float32).min, np.finfo(np.float32).min
    model = attention(ADDED, {"shape": np.array([2, 2, 16, 16], np.int64)}, **FLOAT_MASK)
    expected, actual, _ = both(model, attention_feeds(mask), strategy)
    np.testing.assert_allclose(actual["y"], expected["y"], atol=0.02)


def test_a_declared_range_lets_it_go_low():
    model = attention(ADDED, {"shape": np.array([2, 2, 16, 16], np.int64)}, **FLOAT_MASK)
    assert "softmax" not in mixed_of(model, "fine-grained").plan.low_nodes
    declared = mixed_of(
        model, "fine-grained", ranges={"mask": DeclaredRange(lowest=-10000.0, highest=0.0)}
    ).plan
    assert {"masked", "softmax"} <= set(declared.low_nodes)
    assert Plan.from_json(declared.to_json()).ranges == {"mask": DeclaredRange(lowest=-10000.0, highest=0.0)}
    too_large = mixed_of(model, "fine-grained", ranges={"mask": DeclaredRange(lowest=-1e9, highest=0.0)}).plan
    assert not {"masked", "softmax"} & set(too_large.low_nodes)


def test_a_mask_that_is_computed_with_first_needs_no_range():
    """(1 - mask) * -10000, as BERT has it: the constants tell."""
    nodes = "[u] u = Unsqueeze(mask, axes) [b] e = Sub(one, u) [m] bias = Mul(e, fill)"
    model = attention(nodes, AXES | {"fill": np.float32(-10000.0)}, mask_input="float[2,16] mask")
    assert {"u", "masked", "softmax"} <= set(mixed_of(model, "fine-grained").plan.low_nodes)


def test_every_strategy_is_told():
    assert set(STEADY) | {"fp32"} == set(STRATEGIES)


def test_an_attention_in_one_piece_keeps_an_added_mask_of_unknown_size():
    body = "[e] bias = Expand(mask, shape) [a] y = Attention(q, q, q, bias)"
    model = model_of(
        body,
        {"shape": np.array([2, 2, 16, 16], np.int64)},
        inputs="float[2,2,16,8] q, float[2,1,16,16] mask",
        outputs="float[2,2,16,8] y",
    )
    model.opset_import[0].version = 23
    assert not {"e", "a"} & set(mixed_of(model, "fine-grained").plan.low_nodes)


def test_a_softmax_by_hand_is_lowered_where_it_subtracts_the_largest():
    body = """[s] s = MatMul(q, k) {shifted} [e] e = Exp(d) [t] t = ReduceSum(e, last) [p] p = Div(e, t)
        [context] y = MatMul(p, v)"""
    inputs, constants = (
        "float[2,16,8] q, float[2,8,16] k, float[2,16,8] v",
        {"last": np.array([-1], np.int64)},
    )
    of_largest, as_it_is = (
        reasons(model_of(body.format(shifted=nodes), constants, inputs=inputs, outputs="float[2,16,8] y"))
        for nodes in ("[m] m = ReduceMax(s, last) [d] d = Sub(s, m)", "[d] d = Identity(s)")
    )
    assert Reason.DIVISOR not in of_largest.values()
    assert {node for node, reason in as_it_is.items() if reason is Reason.DIVISOR} == {"e", "t", "p"}
