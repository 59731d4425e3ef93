"""Writing pads: golden graphs per rule, and the same results for random products, padded and not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ir import constants
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.runtime.chunked_run import run as run_once
from campo_onnx.runtime.feeds import synthesize
from tests.optimize.padding.padded import (
    FREE_LAUNCH,
    GENEROUS,
    HERE,
    WEIGHT,
    Pair,
    assert_same,
    assert_valid,
    emulated,
    initializers,
    text_of,
)

ROOT = Path(__file__).parents[3]


# --- one rule each ---


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        pytest.param(
            "g (float[9,16] x, float[16,8] w) => (float[9,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_7_0)",
                "y_fp16_padded = MatMul(x_fp16_padded, w_fp16)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-7, pad_0)",
            ],
            id="only what does not fit",
        ),
        pytest.param(
            "g (float[4,5,8] x, float[8,8] w) => (float[4,5,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_1_0)",
                "y_fp16_padded = MatMul(x_fp16_padded, w_fp16)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-1, pad_1)",
            ],
            id="rows of all batches count together where they share a matrix",
        ),
        pytest.param(
            "g (float[8,9] x, float[9,8] w) => (float[8,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_7)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(x_fp16_padded, w_fp16_padded)",
            ],
            id="a longer sum needs no Slice",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
            ],
            id="a padded output feeds the next product as it is",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y, float[8,9] z)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) [r] z = Relu(h) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_1)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
                "z_fp16 = Relu(h_fp16)",
            ],
            id="and is cut for the others",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y, int64[2] s)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) s = Shape(h) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_1)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
                "s = Shape(h_fp16)",
            ],
            id="a reader of the shape sees the true one",
        ),
        pytest.param(
            "g (float[8,9] x, float[9,8] w, float[9,8] v) => (float[8,8] y, float[8,8] z)"
            "{ [p] y = MatMul(x, w) [q] z = MatMul(x, v) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_7)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(x_fp16_padded, w_fp16_padded)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "z_fp16 = MatMul(x_fp16_padded, v_fp16_padded)",
            ],
            id="one Pad serves all readers",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9] b) => (float[8,9] y) { [p] y = Gemm(x, w, b) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "b_fp16_padded = Pad(b_fp16, pad_0_7)",
                "y_fp16_padded = Gemm(x_fp16, w_fp16_padded, b_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-7, pad_1)",
            ],
            id="a bias grows with the columns",
        ),
        pytest.param(
            "g (float[9,8] x, float[8,8] w, float[8] b, float[8,9] v) => (float[8,8] y)"
            "{ [p] h = Gemm(x, w, b) [q] y = MatMul(v, h) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_7_0)",
                "h_fp16_padded = Gemm(x_fp16_padded, w_fp16, b_fp16)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_0)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_0_7)",
                "h_fp16_padded_1 = Pad(h_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(v_fp16_padded, h_fp16_padded_1)",
            ],
            id="rows that a bias fills are not zero, so the chain is cut",
        ),
        pytest.param(
            "g (float[2,3,4,4] x, float[5,3,3,3] w, float[5] b) => (float[2,5,2,2] y)"
            "{ [p] y = Conv(x, w, b) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_0_5_0_0)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_0_3_5_0_0)",
                "b_fp16_padded = Pad(b_fp16, pad_0_3)",
                "y_fp16_padded = Conv(x_fp16_padded, w_fp16_padded, b_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-3, pad_1)",
            ],
            id="channels of a convolution",
        ),
        pytest.param(
            "g (float[2,3,4,4] x, float[3,5,3,3] w) => (float[2,5,6,6] y) { [p] y = ConvTranspose(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_0_5_0_0)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_0_5_3_0_0)",
                "y_fp16_padded = ConvTranspose(x_fp16_padded, w_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-3, pad_1)",
            ],
            id="ConvTranspose has its channels the other way round",
        ),
    ],
)
def test_golden(pad_all, run, graph, expected):
    pair = pad_all(graph)
    assert text_of(pair.model) == expected
    assert_valid(pair.model, run)
    assert_same(pair)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[2,6,4,4] x, float[4,3,3,3] w) => (float[2,4,2,2] y) { y = Conv<group = 2>(x, w) }",
        "g (float[2,6,4,4] x, float[6,2,3,3] w) => (float[2,4,6,6] y) { y = ConvTranspose<group = 2>(x, w) }",
        "g (float[2,8,3,3] x, float[16,8,3,3] w) => (float[2,16,1,1] y) { y = Conv(x, w) }",
        "g (float[5] x, float[5,7] w) => (float[7] y) { y = MatMul(x, w) }",
        "g (float[16,5,8] x, float[8,24] w) => (float[16,5,24] y) { y = MatMul(x, w) }",
        "g (float[0,5] x, float[5,7] w) => (float[0,7] y) { y = MatMul(x, w) }",
        "g (float[5,5] x) => (float[5,5] y) { y = Relu(x) }",
    ],
    ids=[
        "grouped",
        "grouped back",
        "channels fit",
        "vector",
        "rows of all batches fit",
        "empty",
        "no product",
    ],
)
def test_what_is_left_alone(pad_all, graph):
    pair = pad_all(graph)
    assert pair.plan.pads == ()
    assert pair.model.SerializeToString(deterministic=True) == pair.unpadded.SerializeToString(
        deterministic=True
    )


def test_a_given_low_version_is_padded_not_converted_anew(pad_all):
    pair = pad_all(
        f"g (float[8,8] x) => (float[8,2] y, float16[8,2] z) {WEIGHT}"
        "{ [c] z = Cast<to = 10>(w) [p] y = MatMul(x, w) }",
        ["p"],
    )
    assert "z_padded = Pad(z, pad_0_0_0_6)" in text_of(pair.model)
    assert_same(pair)


# --- weights ---


def test_an_initializer_is_padded_in_the_file(pad_all, run):
    pair = pad_all(f"g (float[8,8] x) => (float[8,2] y) {WEIGHT} {{ y = MatMul(x, w) }}")
    weights = initializers(pair.model)
    assert "w" not in weights
    assert "w_fp16" not in weights
    assert weights["w_fp16_padded"].dtype == np.float16
    assert weights["w_fp16_padded"][:, :2].ravel().tolist() == [*range(1, 10), *range(7)]
    assert not weights["w_fp16_padded"][:, 2:].any()
    assert [part.by for part in pair.plan.pads[0].inputs] == ["file"]
    assert pair.plan.only_padded == {"w"}
    assert_valid(pair.model, run)
    assert_same(pair)


def test_an_initializer_that_others_read_is_there_in_both_sizes(pad_all):
    pair = pad_all(
        f"g (float[8,8] x) => (float[8,2] y, float[8,2] z) {WEIGHT} {{ y = MatMul(x, w) z = Relu(w) }}"
    )
    assert pair.plan.only_padded == frozenset()
    assert {name: a.shape for name, a in initializers(pair.model).items() if "w" in name} == {
        "w_fp16": (8, 2),
        "w_fp16_padded": (8, 8),
    }
    assert_same(pair)


def test_an_external_weight_is_padded_as_it_runs(pad_all, model_text, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "_SMALL_BYTES", 0)  # small ones are read into the file
    model = model_text(f"g (float[8,8] x) => (float[8,2] y) {WEIGHT} {{ y = MatMul(x, w) }}")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(initializers(model)["w"], "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    pair = pad_all(tmp_path / "m.onnx")
    of_the_line = optimize(tmp_path / "m.onnx", Options(target=GENEROUS, lists=preset("campo"))).plan
    for plan in (pair.plan, of_the_line):
        assert [part.by for part in plan.pads[0].inputs] == ["pad"]
    for name, mixed in (("padded", pair.model), ("unpadded", pair.unpadded)):
        export_model(mixed, tmp_path / f"{name}.onnx", folder=tmp_path)
    loaded = {name: onnx.load(tmp_path / f"{name}.onnx") for name in ("padded", "unpadded")}
    assert_same(Pair(plan=pair.plan, model=loaded["padded"], unpadded=loaded["unpadded"]))


# --- open dimensions ---


def test_axes_with_a_symbol_are_not_padded(pad_all):
    graph = "g (float[N,20] x, float[20,30] w) => (float[N,30] y) { y = MatMul(x, w) }"
    assert pad_all(graph, dims={"N": 5}).plan.pads == ()
    pair = pad_all(graph, dims={"N": 8})
    assert [part.ends for part in pair.plan.pads[0].inputs] == [(0, 4), (4, 2)]
    feeds = {"x": np.ones((3, 20), np.float32), "w": np.eye(20, 30, dtype=np.float32)}
    for model in (pair.model, pair.unpadded):
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
        np.testing.assert_array_equal(run_once(model, feeds, HERE)["y"], feeds["x"] @ feeds["w"])


def test_a_symbol_inside_counts_too(pad_all):
    graph = "g (float[20,N] x, float[20,30] w) => (float[N,30] y) { t = Transpose(x) [p] y = MatMul(t, w) }"
    assert pad_all(graph, dims={"N": 5}).plan.pads == ()
    assert len(pad_all(graph, dims={"N": 16}).plan.pads) == 1


def test_an_initializer_fixes_the_axes_it_shares(pad_all):
    w = f"<float[8,2] w = {{{', '.join('1' * 16)}}}>"
    text = f"g (float[N,M] x) => (float[N,K] y) {w} {{ t = Relu(x) [p] h = MatMul(t, w) y = Neg(h) }}"
    pair = pad_all(text, dims={"N": 8, "M": 8})
    assert [part.ends for part in pair.plan.pads[0].inputs] == [(0, 6)]


@pytest.mark.parametrize(("rows", "expected"), [(16, 1), (15, 0)])
def test_the_whole_line_minds_open_axes(model_text, rows, expected):
    model = model_text("g (float[N,20] x, float[20,30] w) => (float[N,30] y) { y = MatMul(x, w) }")
    options = Options(target=GENEROUS, lists=preset("campo"), dims={"N": rows})
    assert len(optimize(model, options).plan.pads) == expected


# --- real graphs ---


@pytest.mark.parametrize("name", ["mlp", "alexnet_like", "resblocks"])
def test_pads_change_real_graphs_by_accumulation_error_only(name):
    path = ROOT / "tests" / "data" / f"{name}.onnx"
    options = Options(target=FREE_LAUNCH, lists=preset("campo"), keep_fp32=("Random.*",))
    optimized = optimize(path, options)
    assert optimized.plan.pads
    unpadded = rewrite(optimized.imported, replace(optimized.plan, pads=()))
    feeds = synthesize(import_model(path).view)
    expected, actual = (emulated(model, feeds) for model in (unpadded, optimized.model))
    for output, value in expected.items():
        assert relative_l2(actual[output], value) < 1e-3, output
