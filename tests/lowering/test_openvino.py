"""Steps in the form that OpenVINO runs: on the real plugin, beside FP64 and ONNX Runtime."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from campo_onnx_cli.main import app
from typer.testing import CliRunner

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import read_graphs
from campo_onnx.bench.result import Outcome
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import form_for, optimize
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.openvino.runtime import RUNTIME
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target
from campo_onnx.training.session import TrainingSession
from tests.conftest import run_model

HERE = Place(target=target("cpu", "openvino"))
CPU = target("cpu", "openvino")
OPTIONS = Options(target=CPU, lists=preset("campo"), low=Precision.BF16)
SHAPES = {"x": (2, 3, 10, 10), "param.w": (4, 3, 3, 3)}


def step(*, drops=False):
    """A convolution, a max pool and its gradient by the indices of the maxima, and a weight update."""
    dropped = "d, mask = Dropout(p, ratio, training)" if drops else "d = Identity(p)"
    back = "chosen = Where(mask, c, none) dp = Mul(chosen, grown)" if drops else "dp = Identity(c)"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[2,3,10,10] x, float[4,3,3,3] w)
        => (float loss, float[4,3,3,3] dw, float[4,3,3,3] new_w, float[2,4,5,5] d)
    <float ratio = {{0.25}}, bool training = {{1}}, float none = {{0.0}}, float grown = {{1.3333334}},
     float lr = {{0.1}}, int64[2] flat = {{8, 100}}, int64[2] rows = {{8, 25}}, float[8,100] zeros = {{{
        ", ".join(["0.0"] * 800)
    }}},
     int64[4] images = {{2, 4, 10, 10}}, int64[1] two = {{2}}, int64[8] base = {{{
        ", ".join(str(100 * i) for i in range(8))
    }}}, int64[2] column = {{8, 1}}>
    {{
        y = Conv<pads=[1,1,1,1]>(x, w)
        r = Relu(y)
        p, places = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(r)
        {dropped}
        squares = Mul(d, d)
        loss = ReduceSum<keepdims=0>(squares)
        c = Add(d, d)
        {back}
        start = Reshape(base, column)
        long = Reshape(places, rows)
        within = Sub(long, start)
        terms = Reshape(dp, rows)
        scattered = ScatterElements<axis=1, reduction="add">(zeros, within, terms)
        dr = Reshape(scattered, images)
        is_positive = Greater(r, none)
        dy = Where(is_positive, dr, none)
        xt = Transpose<perm=[1,0,2,3]>(x)
        dyt = Transpose<perm=[1,0,2,3]>(dy)
        dwt = Conv<pads=[1,1,1,1]>(xt, dyt)
        dw = Transpose<perm=[1,0,2,3]>(dwt)
        change = Mul(dw, lr)
        new_w = Sub(w, change)
    }}""")
    names = {"w": "param.w", "dw": "grad.w", "new_w": "new.w"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    return model


@pytest.fixture
def feeds():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "step.onnx"
    onnx.save(step(drops=True), path)
    return path


def pooled(x, w):
    """Loss and gradient in FP64 by the definition; the first maximum of a window has its gradient."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    r = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w), 0)
    loss, dr = 0.0, np.zeros_like(r)
    for n, c, i, j in np.ndindex(2, 4, 5, 5):
        rows, columns = (slice(max(0, 2 * k - 1), 2 * k + 2) for k in (i, j))
        tile = r[n, c, rows, columns]
        a, b = np.unravel_index(tile.argmax(), tile.shape)
        loss += tile[a, b] ** 2
        dr[n, c, rows.start + a, columns.start + b] += 2 * tile[a, b]
    return loss, np.einsum("nchwij,nohw->ocij", windows, dr * (r > 0))


def op_types(model):
    return {node.op_type: list(node.output) for node in model.graph.node}


def test_loss_and_gradient_are_those_of_fp64_and_of_onnx_runtime(feeds):
    form = as_it_runs(import_model(step()), HERE)
    assert form.passes == ("max_pool",)
    values = RUNTIME.load(form.model, "cpu").run(feeds)
    loss, gradient = pooled(feeds["x"], feeds["param.w"])
    np.testing.assert_allclose(values["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(values["grad.w"], gradient, rtol=1e-4, atol=1e-4)
    for name, value in run_model(step(), feeds).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def test_no_reference_kernel_is_left(feeds):
    kernels = {}
    imported = import_model(step())
    for title, form in (("given", imported), ("form", as_it_runs(imported, HERE))):
        program = RUNTIME.load(form.model, "cpu", settings=LoadSettings(traces=True))
        times = program.node_times(feeds, repeats=2).nodes
        kernels[title] = {node.kernel for node in times if any("MaxPool" in name for name in node.nodes)}
    assert any("Reference" in kernel for kernel in kernels["given"])
    assert not any("Reference" in kernel for kernel in kernels["form"])


def test_dropout_in_training_is_drawn(feeds):
    form = as_it_runs(import_model(step(drops=True)), HERE)
    assert set(form.passes) == {"dropout", "max_pool"}
    program = RUNTIME.load(form.model, "cpu")
    whole = run_model(step(), feeds)["d"]
    drawn = [program.run(feeds)["d"] for _ in range(20)]
    live = whole > 1e-6
    for values in drawn:
        is_zero = np.abs(values) < 1e-12
        np.testing.assert_allclose(values[~is_zero], (whole / 0.75)[~is_zero], rtol=1e-4)
    share = np.mean([values[live] == 0 for values in drawn])
    assert share == pytest.approx(0.25, abs=0.05)
    assert any(not np.array_equal(drawn[0], other) for other in drawn[1:])


def test_plans_are_of_the_form_in_every_precision(path):
    optimized = optimize(path, OPTIONS)
    assert not optimized.refused_by(CPU)
    assert set(optimized.imported.passes) >= {"dropout", "max_pool"}
    assert "Dropout" not in op_types(optimized.model)
    in_fp32 = optimize(path, replace(OPTIONS, strategy="fp32"))
    assert not in_fp32.plan.low_nodes
    assert "Dropout" not in op_types(in_fp32.model)


def test_the_form_is_its_own_form(path):
    form = form_for(import_model(path), OPTIONS)
    assert form.passes
    assert as_it_runs(form, HERE) is form
    again = import_model(form.model)
    assert as_it_runs(again, HERE) is again


def test_onnx_runtime_keeps_the_graph(path):
    imported = import_model(path)
    for device in ("cpu", "v100"):
        assert as_it_runs(imported, Place(target=target(device))) is imported


def test_a_session_trains_it(path, feeds):
    with_dropout = TrainingSession(path, {"param.w": feeds["param.w"]}, runtime="openvino")
    assert with_dropout.step({"x": feeds["x"]}).updated
    losses = {}
    for runtime in ("openvino", "onnxruntime"):
        session = TrainingSession(
            step(), {"param.w": 0.1 * feeds["param.w"]}, provider="cpu", runtime=runtime
        )
        losses[runtime] = [session.step({"x": feeds["x"]}).loss for _ in range(3)]
    np.testing.assert_allclose(losses["openvino"], losses["onnxruntime"], rtol=1e-3)


def test_the_bench_times_the_form(path):
    here = machine("cpu", 1, "openvino")
    assert all(graph.imported.passes for graph in read_graphs([path], place=Place.on(here)))
    result = bench(read_graphs([path, path], place=Place.on(here)), here, steps=2, warmup=0)
    assert all(row.verdict is not Outcome.FAILED for row in result.rows)


def test_commands_say_so(path, tmp_path):
    written = tmp_path / "planned.onnx"
    here = ["--runtime", "openvino", "--device", "cpu"]
    profile = tmp_path / "profile.parquet"
    for words in (
        ["optimize", str(path), "-o", str(written), "--strategy", "fp32", "--precision", "bf16"],
        ["profile", str(path), "-o", str(profile), "--store", str(tmp_path / "store"), "--steps", "2"],
        ["bench", str(path), "--steps", "6"],
    ):
        result = CliRunner().invoke(app, [*words, *here])
        assert result.exit_code == 0, (words[0], result.output)
        said = " ".join(result.output.split())
        assert "the form that openvino runs best" in said, words[0]
    assert "Dropout" not in op_types(onnx.load(written))
