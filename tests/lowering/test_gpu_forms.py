"""Forms for GPUs: what each pass writes there, and that it computes the same."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import parser

from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.convolutions.passes import convolutions
from campo_onnx.lowering.own_operators import own_operators
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rows_on_gpu import rows_on_gpu
from campo_onnx.runtime.machine import Machine
from campo_onnx.targets.target import target

CUDA, CPU = Place(target=target("v100")), Place(target=target("cpu"))


def parsed(graph):
    return import_model(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}'))


def test_a_gpu_without_figures_has_forms_of_any_gpu() -> None:
    a10 = Machine(provider="cuda", device="NVIDIA A10", driver="", cuda="", ort="1", tf32=True, threads=0)
    assert Place.on(a10) == CUDA
    assert Place.on(replace(a10, device="NVIDIA H200")).target.name == "h200"


@pytest.mark.parametrize(
    ("images", "kernel"), [((64, 8, 16, 16), (64, 8, 14, 14)), ((3, 32, 8, 8), (4, 32, 6, 6))]
)
def test_on_a_gpu_no_gradient_of_a_weight_is_a_convolution(run, images, kernel) -> None:
    """cuDNN has no kernel for images as kernels: an H200 took up to 140 times as long as for the product."""
    (batch, channels, *size), (outputs, _, *result) = images, kernel
    imported = parsed(f"""
        g (float[{batch}, {channels}, {size[0]}, {size[1]}] x,
           float[{batch}, {outputs}, {result[0]}, {result[1]}] dy) => (float[{outputs}, {channels}, 3, 3] dw)
        {{
            a = Transpose <perm = [1, 0, 2, 3]> (x)
            b = Transpose <perm = [1, 0, 2, 3]> (dy)
            taps = Conv (a, b)
            dw = Transpose <perm = [1, 0, 2, 3]> (taps)
        }}""")
    chance = np.random.default_rng(0)
    shapes = {"x": images, "dy": (batch, outputs, *result)}
    feeds = {name: chance.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    written = convolutions(imported, CUDA)
    assert "Conv" not in {node.op_type for node in written.graph.node}
    exact, actual = run(imported.model, feeds)["dw"], run(written, feeds)["dw"]
    assert np.linalg.norm(actual - exact) < 1e-5 * np.linalg.norm(exact)


def test_sums_of_products_over_rows_stay_sums_on_a_gpu() -> None:
    """As products of a row with a column they take 16 times as long in FP16 (32,768 rows of 3,136, H200)."""
    imported = parsed("""
        g (float[8, 64, 3136] x, float[8, 64, 3136] dy) => (float[8, 64] s)
        <int64[1] last = {2}>
        { p = Mul (x, dy) s = ReduceSum <keepdims = 0> (p, last) }""")
    written = own_operators(imported, CUDA)
    assert [node.op_type for node in written.graph.node] == ["Mul", "ReduceSum"]


SUMS = """step (float[{0}] x) => (float[{1}] y) <int64[1] axes = {{2}}> {{ y = ReduceSum (x, axes) }}"""
SCALED = """step (float[1,64,{0}] x, float[64] s, float[64] t) => (float[1,64,{0}] y)
    <float[64] mean = {{{1}}}, float[64] variance = {{{2}}}> {{
        y = BatchNormalization <epsilon = {3}> (x, s, t, mean, variance) }}"""
ZEROS = ", ".join(["0.0"] * 64)


@pytest.mark.parametrize("size", ["64,128,49", "8,1024,55", "4,2048,53"])
def test_sums_over_channels_of_images_are_means_on_a_gpu(run, size: str) -> None:
    imported = parsed(SUMS.format(size, size.rpartition(",")[0] + ",1"))
    written = rows_on_gpu(imported, CUDA)
    assert [node.op_type for node in written.graph.node].count("ReduceSum") == 0
    x = np.random.default_rng(3).standard_normal([*map(int, size.split(","))], np.float32)
    expected, actual = (run(m, {"x": x})["y"] for m in (imported.model, written))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(
    ("size", "axes", "keeps"),
    [((64, 128, 7, 7), (0, 2, 3), 0), ((64, 128, 7, 7), (-1, -2), 1), ((5, 16, 127, 103), (0, 2, 3), 1)],
)
def test_sums_over_images_are_sums_of_means_on_a_gpu(run, kind, size, axes, keeps) -> None:
    """Those of images whose channels are long rows are cut into rows that were measured."""
    listed = [",".join(map(str, numbers)) for numbers in (size, axes)]
    reduced = {axis % 4 for axis in axes}
    result = [1 if axis in reduced else n for axis, n in enumerate(size) if keeps or axis not in reduced]
    imported = parsed(f"""
        g (float[{listed[0]}] x) => (float[{",".join(map(str, result))}] y)
        <int64[{len(axes)}] axes = {{{listed[1]}}}> {{ y = {kind} <keepdims = {keeps}> (x, axes) }}""")
    written = rows_on_gpu(imported, CUDA)
    assert "GlobalAveragePool" in {node.op_type for node in written.graph.node}
    x = np.random.default_rng(5).standard_normal(size, np.float32)
    expected, actual = (run(m, {"x": x})["y"] for m in (imported.model, written))
    assert expected.shape == actual.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("axes", ["0", "0, 1", "1, 2, 3", "0, 2"])
def test_sums_over_other_axes_stay(axes) -> None:
    imported = parsed(f"""
        g (float[64,128,7,7] x) => (float[?,?,?,?] y)
        <int64[{axes.count(",") + 1}] axes = {{{axes}}}> {{ y = ReduceSum (x, axes) }}""")
    assert rows_on_gpu(imported, CUDA) is imported.model


@pytest.mark.parametrize(
    ("size", "place"),
    [
        ("64,128,49", CPU),
        ("64,128,49", replace(CUDA, sizes_change=True)),
        ("64,127,49", CUDA),
        ("64,128,48", CUDA),
    ],
)
def test_other_sums_stay(size: str, place: Place) -> None:
    imported = parsed(SUMS.format(size, size.rpartition(",")[0] + ",1"))
    assert rows_on_gpu(imported, place) is imported.model


def test_short_rows_are_scaled_and_shifted_on_a_gpu(run) -> None:
    imported = parsed(SCALED.format(49, ZEROS, ZEROS, 1.0))
    written = rows_on_gpu(imported, CUDA)
    assert {node.op_type for node in written.graph.node} == {"Reshape", "Mul", "Add"}
    draw = np.random.default_rng(4).standard_normal
    feeds = {"x": draw((1, 64, 49), np.float32), "s": draw(64, np.float32), "t": draw(64, np.float32)}
    expected, actual = (run(m, feeds)["y"] for m in (imported.model, written))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        (49, ZEROS, ZEROS, 1e-5),
        (196, ZEROS, ZEROS, 1.0),
        (49, ZEROS[:-3] + "1.0", ZEROS, 1.0),
        (49, ZEROS, ZEROS[:-3] + "1.0", 1.0),
    ],
)
def test_other_normalizations_stay(settings) -> None:
    imported = parsed(SCALED.format(*settings))
    assert rows_on_gpu(imported, CUDA) is imported.model


def test_a_normalization_that_trains_stays() -> None:
    """It computes the statistics of its batch, whatever it is given."""
    text = SCALED.format(49, ZEROS, ZEROS, "1.0, training_mode = 1")
    trains = parsed(
        text.replace("y = Batch", "y, m, v = Batch").replace(
            "(float[1,64,49] y)", "(float[1,64,49] y, float[64] m, float[64] v)"
        )
    )
    assert rows_on_gpu(trains, CUDA) is trains.model
