"""Drawn weights keep signals at the size that layers are initialized for."""

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import parser

from campo_onnx.emulation.batches import draw_batches
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

HEADER = '<ir_version: 10, opset_import: ["": 20]> g '


def drawn(text: str) -> dict[str, NDArray[np.float32]]:
    view = import_model(parser.parse_model(HEADER + text)).view
    products = [
        node.name for node in view.nodes if node.op.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    ]
    return dict(next(iter(draw_batches(view, products))).feeds)


PRODUCTS = {
    "MatMul": ("float[32, 900] x, float[900, 400] w", "32, 400", "MatMul(x, w)", 900),
    "behind a Transpose": (
        "float[32, 900] x, float[400, 900] w",
        "32, 400",
        "MatMul(x, t)",
        900,
    ),
    "Gemm": ("float[32, 900] x, float[400, 900] w", "32, 400", "Gemm<transB = 1>(x, w)", 900),
    "Conv": ("float[2, 16, 9, 9] x, float[64, 16, 3, 3] w", "2, 64, 7, 7", "Conv(x, w)", 144),
    "depthwise": ("float[2, 64, 9, 9] x, float[64, 1, 3, 3] w", "2, 64, 7, 7", "Conv<group = 64>(x, w)", 9),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_terms_of_a_product_add_up_to_about_one(case: str) -> None:
    inputs, shape, product, terms = PRODUCTS[case]
    moved = "t = Transpose<perm = [1, 0]>(w) " if "(x, t)" in product else ""
    w = drawn(f"({inputs}) => (float[{shape}] y) {{ {moved}y = {product} }}")["w"]
    assert w.std() * np.sqrt(terms) == pytest.approx(1.0, rel=0.01)


def test_a_transposed_convolution_counts_what_meets_in_one_pixel() -> None:
    text = (
        "(float[2, 16, 8, 8] x, float[16, 8, 4, 4] w) => (float[2, 8, 18, 18] y) "
        "{ y = ConvTranspose<strides = [2, 2]>(x, w) }"
    )
    w = drawn(text)["w"]
    assert w.std() * np.sqrt(16 * 4) == pytest.approx(1.0, rel=0.3)  # borders have fewer


@pytest.mark.parametrize("outputs", ["y, last", '"", last'])
def test_a_recurrent_layer_counts_what_each_gate_adds_up(outputs: str) -> None:
    text = (
        "(float[20, 4, 64] x, float[1, 256, 64] w, float[1, 256, 64] r) => (float[1, 4, 64] last) "
        f"{{ {outputs} = LSTM<hidden_size = 64>(x, w, r) }}"
    )
    feeds = drawn(text)
    assert [feeds[name].std() * 8 for name in "wr"] == pytest.approx([1.0, 1.0], rel=0.01)


SCALES = {
    "LayerNormalization": "y = LayerNormalization(h, gamma, beta)",
    "Mul and Add": "m = Mul(h, gamma) y = Add(m, beta)",
}


@pytest.mark.parametrize("case", SCALES)
def test_what_multiplies_channels_is_near_one_and_what_is_added_small(case: str) -> None:
    text = (
        "(float[32, 256] x, float[256, 256] w, float[256] gamma, float[256] beta) => (float[32, 256] y) "
        f"{{ h = MatMul(x, w) {SCALES[case]} }}"
    )
    feeds = drawn(text)
    assert np.abs(feeds["gamma"] - 1.0).max() < 0.3
    assert np.abs(feeds["beta"]).max() < 0.3


def test_moments_of_an_optimizer_stay_small() -> None:
    text = (
        "(float[32, 256] x, float[256, 64] w, float[64] b, float[64] m, float beta1) => "
        "(float[32, 64] y, float[64] new_b, float[64] new_m) { h = MatMul(x, w) y = Add(h, b) "
        "g = ReduceSum<keepdims = 0>(y, axes) k = Mul(m, beta1) new_m = Add(k, g) new_b = Sub(b, new_m) }"
    ).replace("{ h", "{ axes = Constant<value_ints = [0]>() h", 1)
    assert np.abs(drawn(text)["m"]).max() < 0.3


def test_signals_of_a_deep_network_neither_grow_nor_vanish() -> None:
    layers = range(40)
    weights = ", ".join(f"float[64, 64] w{i}" for i in layers)
    nodes = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in layers)
    text = f"(float[64, 64] h0, {weights}) => (float[64, 64] h40) {{ {nodes} }}"
    result = run(parser.parse_model(HEADER + text), drawn(text), machine("cpu", 1))["h40"]
    assert 0.01 < result.std() < 100.0


BRANCH = """(float[8, 16] x, float[8, 16] z, float[16, 32] w, float[32] b, float[16] scale)
    => (float[8, 32] y, float[8, 32] s, float[16, 32] dw, float[8, 16] out) {
    h = MatMul(x, w) y = Add(h, b) s = MatMul(z, w) xt = Transpose<perm = [1, 0]>(x) dw = MatMul(xt, y)
    wt = Transpose<perm = [1, 0]>(w) q = MatMul(y, wt) r = Mul(scale, q) out = Add(r, x) }"""


def batches_of(text: str) -> dict[str, dict[str, NDArray[np.float32]]]:
    view = import_model(parser.parse_model(HEADER + text)).view
    products = [node.name for node in view.nodes if node.op.op_type == "MatMul"]
    return {batch.title: dict(batch.feeds) for batch in draw_batches(view, products)}


def test_what_a_gradient_reads_again_is_data() -> None:
    text = BRANCH.replace("(xt, y)", "(xt, y) again = MatMul(yt, x)").replace(
        "xt = ", "yt = Transpose<perm = [1, 0]>(y) xt = "
    )
    rows = batches_of(text)["empty, repeated and extreme rows"]
    assert not rows["x"][0].any()
    assert rows["w"][0].all()


def test_a_batch_as_long_as_a_layer_is_data() -> None:
    rows = batches_of(
        """(float[16, 16] x, float[16, 16] w) => (float[16, 16] h, float[16, 16] new) {
        h = MatMul(x, w) xt = Transpose<perm = [1, 0]>(x) dw = MatMul(xt, h) new = Sub(w, dw) }"""
    )["empty, repeated and extreme rows"]
    assert not rows["x"][0].any()
    assert rows["w"][0].all()


def test_inputs_of_a_shape_are_views_of_the_same_data_once() -> None:
    batches = batches_of(BRANCH)
    x, z = (batches["views of the same data"][name] for name in "xz")
    ordinary = batches["ordinary values"]
    assert np.linalg.norm(x - z) < np.linalg.norm(ordinary["x"] - ordinary["z"]) / 10
    assert not np.array_equal(x, z)


def test_what_scales_a_branch_is_as_small_as_fp16_hardly_holds_once() -> None:
    batches = batches_of(BRANCH)
    small = batches["branches that hardly count"]
    assert np.abs(small["scale"]).max() < np.finfo(np.float16).tiny
    others = [name for name in small if not np.array_equal(small[name], batches["ordinary values"][name])]
    assert others == ["scale"]


def test_a_momentum_scales_no_branch() -> None:
    """It is added to what has its own size; a branch is larger than its factors."""
    text = (
        "(float[8, 16] x, float[16, 16] w, float[16] momentum, float[16] gradient, float rate) "
        "=> (float[8, 16] y, float[16] new) "
        "{ y = MatMul(x, w) slower = Mul(momentum, rate) new = Add(slower, gradient) }"
    )
    assert "branches that hardly count" not in batches_of(text)
