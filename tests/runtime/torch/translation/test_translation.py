"""A model as a function of torch tensors: its interface, what is known while tracing, what is refused."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from torch.fx.experimental.proxy_tensor import make_fx

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.runtime.torch.translation import translate
from tests.runtime.torch.translation.beside import TOLERANCE, on_torch, parsed, worst_deviation


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def test_inputs_are_those_that_are_not_initializers():
    model = parsed(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x, float[2] w, float[2] z) => (float[2] y) <float[2] w = {1, 2}>
        { s = Add (x, w) y = Mul (s, z) }"""
    )
    translation = translate(model)
    assert translation.inputs == ("x", "z")
    assert translation.outputs == ("y",)
    assert translation.constants.keys() == {"w"}
    (y,) = translation(torch.ones(2), torch.full((2,), 2.0))
    assert y.tolist() == [4, 6]


def test_sizes_with_names_stay_sizes_in_a_traced_graph():
    model = parsed(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[N, 4] x) => (float[M, 2] y, int64[2] s) <int64[1] two = {2}, int64 zero = {0}>
        {
            s = Shape (x)
            n = Gather (s, zero)
            axis = Constant <value_ints = [0]> ()
            rows = Unsqueeze (n, axis)
            twice = Mul (rows, two)
            shape = Concat <axis = 0> (twice, two)
            y = Reshape (x, shape)
        }"""
    )
    translation = translate(model)
    traced = make_fx(translation, tracing_mode="symbolic")(torch.ones(3, 4))
    y, s = traced(torch.ones(5, 4))
    assert (tuple(y.shape), s.tolist()) == ((10, 2), [5, 4])


def test_a_shape_from_data_is_read_when_run_and_refused_when_traced():
    model = parsed(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[4] x, int64[2] s) => (float[A, B] y) { y = Reshape (x, s) }"""
    )
    model.graph.node[0].name = "reshape"
    translation = translate(model)
    x, s = torch.ones(4), torch.tensor([2, 2])
    assert translation(x, s)[0].shape == (2, 2)
    with pytest.raises(UnsupportedModelError, match=r"'reshape' \(Reshape\): its input 's' has to be known"):
        make_fx(translation, tracing_mode="fake")(x, s)


def test_every_operator_without_a_row_is_named():
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("StringNormalizer", ["x"], ["y"], name="normalizer"),
                helper.make_node("Fancy", ["y"], ["z"], name="fancy", domain="my.domain"),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.STRING, [1])],
            [helper.make_tensor_value_info("z", TensorProto.STRING, [1])],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.domain", 1)],
    )
    with pytest.raises(UnsupportedModelError) as caught:
        translate(model)
    assert caught.value.exit_code == 4
    assert caught.value.what == "torch does not run 2 operators of the graph"
    assert "StringNormalizer (node 'normalizer')" in caught.value.why
    assert "my.domain:Fancy (node 'fancy')" in caught.value.why


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT8E4M3FN, TensorProto.STRING, TensorProto.INT4])
def test_types_that_are_not_translated_are_refused(dtype):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, [2])],
        [helper.make_tensor_value_info("y", dtype, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(UnsupportedModelError, match=f"'x'.*{TensorProto.DataType.Name(dtype)}"):
        translate(model)


def test_constants_outside_the_file_are_read(tmp_path):
    weight = numpy_helper.from_array(random(3), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    outside = onnx.load(path, load_external_data=False)
    (y,) = translate(outside, tmp_path)(torch.zeros(3))
    assert np.array_equal(y.numpy(), random(3))
    with pytest.raises(ModelError, match="'w'"):
        translate(outside)


def test_local_functions_are_written_out():
    model = parsed(
        """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.twice (x) }
        <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Add (a, a) }"""
    )
    assert on_torch(model, {"x": np.ones(2, np.float32)})[0].tolist() == [2, 2]


LOOP = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, int64 n) => (float[2] y, float[T, 2] all) <bool go = {1}>
{
    y, all = Loop (n, go, x) <body = b (int64 i, bool k, float[2] a) => (bool k, float[2] c, float[2] d)
        { c = Add (a, a) d = Identity (c) }>
}"""


def test_a_loop_is_computed_as_often_as_its_input_says():
    feeds = {"x": np.ones(2, np.float32), "n": np.array(3)}
    assert worst_deviation(parsed(LOOP), feeds) < TOLERANCE
    with pytest.raises(UnsupportedModelError, match=r"\(Loop\): its trip count has to be known"):
        make_fx(translate(parsed(LOOP)), tracing_mode="fake")(torch.ones(2), torch.tensor(3))


def test_a_loop_whose_count_is_constant_is_traced():
    text = LOOP.replace(", int64 n)", ")").replace("<bool go", "<int64 n = {3}, bool go")
    traced = make_fx(translate(parsed(text)), tracing_mode="fake")(torch.ones(2))
    assert traced(torch.ones(2))[0].tolist() == [8, 8]
    assert str(traced.graph).count("aten.add.Tensor") == 3


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, bool c) => (float[2] y)
{
    y = If (c) <then_branch = t () => (float[2] a) { a = Exp (x) },
                else_branch = e () => (float[2] b) { b = Neg (x) }>
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_is_chosen_by_data_in_a_traced_graph_too(condition):
    feeds = {"x": random(2), "c": np.array(condition)}
    assert worst_deviation(parsed(BRANCHES), feeds) < TOLERANCE
    traced = make_fx(translate(parsed(BRANCHES)), tracing_mode="fake")(torch.ones(2), torch.tensor(True))
    expected = np.exp(feeds["x"]) if condition else -feeds["x"]
    np.testing.assert_allclose(traced(*map(torch.from_numpy, feeds.values()))[0].numpy(), expected, rtol=1e-6)


OLD_FORMS = {
    "axes as an attribute": "y = ReduceSum <axes = [-1], keepdims = 0> (x)",
    "squeezed": "a = Unsqueeze <axes = [0, 2]> (x) y = Squeeze <axes = [0]> (a)",
    "bounds as attributes": "y = Clip <min = -0.5, max = 0.5> (x)",
    "pads as an attribute": "y = Pad <pads = [1, 0, -1, 2], value = 3.0> (x)",
    "sliced": "y = Slice <starts = [-2], ends = [9223372036854775807], axes = [1]> (x)",
    "softmax of all axes from one on": "y = Softmax <axis = 0> (x)",
    "split": "y, z = Split <axis = 1, split = [1, 3]> (x)",
    "ratio as an attribute": "y = Dropout <ratio = 0.3> (x)",
}


@pytest.mark.parametrize("form", OLD_FORMS)
def test_forms_of_opset_nine_mean_what_they_meant(form):
    model = parsed(
        f'<ir_version: 4, opset_import: ["" : 9]> g (float[3,4] x) => (float[A] y) {{ {OLD_FORMS[form]} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert worst_deviation(model, {"x": random(3, 4)}) < TOLERANCE


def test_low_precision_products_have_the_type_that_the_graph_says():
    model = parsed(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[4,4] x) => (bfloat16[4,4] y, float16[4] z) <int64[1] axes = {1}>
        { a = Cast <to = 16> (x) y = MatMul (a, a) b = Cast <to = 10> (x)
          z = ReduceSum <keepdims = 0> (b, axes) }"""
    )
    y, z = on_torch(model, {"x": random(4, 4)})
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float16)


def test_importing_the_package_loads_no_torch():
    code = "import sys, campo_onnx, campo_onnx.runtime.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
