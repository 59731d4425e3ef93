"""Graphs that OpenVINO ran wrongly, or not at all, compute what they compute in ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.onnxruntime.runtime import RUNTIME as ORT
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model

BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def run(graph, feeds):
    return RUNTIME.load(parse_model(graph, 22), "cpu").run(feeds)


def typed(value):
    """A BF16 tensor whose bits are numbers, as ONNX allows."""
    constant = helper.make_tensor("one", TensorProto.BFLOAT16, [1], [value])
    assert constant.int32_data
    return constant


@pytest.mark.parametrize("place", ["an attribute", "an initializer", "a body"])
def test_constants_in_bf16_are_numbers_however_they_are_written(bf16_units, place):
    """The plugin takes bits that are not raw bytes for whole numbers: 1 was 16,256."""
    low, result = TensorProto.BFLOAT16, helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [1])
    initializers, inputs, feeds = [], [], {}
    if place == "an attribute":
        initializers = [numpy_helper.from_array(np.array([1]), "shape")]
        node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=typed(1.5))
    elif place == "an initializer":
        initializers, node = [typed(1.5)], helper.make_node("Identity", ["one"], ["y"])
    else:
        branch = helper.make_tensor_value_info("z", low, [1])
        bodies = [
            helper.make_graph(
                [helper.make_node("Identity", ["one"], ["z"])], "b", [], [branch], [typed(number)]
            )
            for number in (1.5, 3.0)
        ]
        node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
        inputs, feeds = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])], {"c": np.array(True)}
    graph = helper.make_graph([node], "g", inputs, [result], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    written = model.SerializeToString()
    assert float(RUNTIME.load(model, "cpu").run(feeds)["y"][0]) == 1.5
    assert model.SerializeToString() == written


@pytest.mark.parametrize("to_scalar", ["s", "sh"])
def test_products_become_scalars_without_a_crash(to_scalar):
    """Reshapes behind a product ended the process in the plugin; they are Squeezes, in bodies too."""
    graph = f"""
    agraph (float[1,5] a, float[5,1] b, float of, bool is) => (float y, float z) <int64[0] s = {{}}> {{
      c = MatMul (a, b)
      sh = Shape (of)
      y = Reshape (c, {to_scalar})
      z = If (is) <
        then_branch = t () => (float p) {{ tc = MatMul (a, b) p = Reshape (tc, s) }},
        else_branch = e () => (float q) {{ ec = MatMul (a, b) en = Neg (ec) q = Reshape (en, s) }}
      >
    }}
    """
    a = np.arange(5, dtype=np.float32)[None]
    for branch in (True, False):
        feeds = {"a": a, "b": a.T.copy(), "of": np.float32(0).reshape(()), "is": np.array(branch)}
        values = run(graph, feeds)
        assert values["y"].shape == values["z"].shape == ()
        assert (values["y"], values["z"]) == (30.0, 30.0 if branch else -30.0)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"])
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_axes_that_are_an_attribute(op, opset):
    """In opset 13 to 17 three reductions reduced all axes instead."""
    model = parse_model(
        f"agraph (float[6,3] x) => (float[3] y) {{ y = {op} <axes = [0], keepdims = 0> (x) }}", opset
    )
    feeds = {"x": np.random.default_rng(0).uniform(1, 2, (6, 3)).astype(np.float32)}
    try:
        values = RUNTIME.load(model, "cpu").run(feeds)
    except UnsupportedModelError:
        assert opset > 11
        assert op in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
    else:
        np.testing.assert_allclose(values["y"], ORT.load(model, "cpu").run(feeds)["y"], rtol=1e-5)


def test_the_first_of_equal_values_comes_first():
    graph = """
    agraph (float[8] x) => (float[8] v, int64[8] i) <int64[1] k = {8}> { v, i = TopK (x, k) }
    """
    values = run(graph, {"x": np.asarray([1, 3, 3, 0, 3, 0, 0, 2], np.float32)})
    assert values["i"].tolist() == [1, 2, 4, 7, 0, 3, 5, 6]


TIED = """
agraph (
    float[44,5] h, float[5,5] w, float[5] b, float[4,11,5] x, float[28,5] table, float[28] c, float[44,28] g
) => (float[44,28] y, float[28,5] t) <int64[2] rows = {44, 5}, int64[3] sequences = {4, 11, 5}> {
  p = Gemm <transB = 1> (h, w)
  q = Reshape (p, sequences)
  r = Add (q, b)
  s = Add (r, x)
  last = Reshape (s, rows)
  y = Gemm <transB = 1> (last, table, c)
  t = Gemm <transA = 1> (g, last)
}
"""


def test_a_graph_whose_nodes_cannot_be_joined_runs_without():
    """OpenVINO's pass that joins element-wise nodes raised an error in a language model's last layer."""
    model = parse_model(TIED)
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    values, exact = RUNTIME.load(model, "cpu").run(feeds), ORT.load(model, "cpu").run(feeds)
    for name in exact:
        np.testing.assert_allclose(values[name], exact[name], rtol=1e-4, atol=1e-4)


def _shared_constants():
    """Constants that two kernels read in different layouts: the second read the first's, up to 170 % off."""
    square, filters = np.random.default_rng(0).normal(size=(16, 16)), (16, 16, 3, 3)
    both = "float[4,16] x, float[4,16] g) => (float[4,16] y, float[4,16] z)"
    images = "float[2,16,8,8] x, float[2,16,8,8] g) => (float[2,16,8,8] y, float[2,16,8,8] z)"
    transposed = "t = Transpose <perm = [1, 0]> (w) z = MatMul (g, t)"
    yield square, f"agraph ({both} {{ y = MatMul (x, w) {transposed} }}"
    yield square, f"agraph ({both} {{ y = MatMul (x, w) z = Gemm <transB = 1> (g, w) }}"
    yield (
        square.reshape(-1),
        f"agraph ({both} <int64[2] s = {{16, 16}}, int64[2] r = {{16, -1}}> {{ v = Reshape (w, s) "
        f"y = MatMul (x, v) u = Reshape (w, r) {transposed.replace('(w)', '(u)')} }}",
    )
    conv, back = "y = Conv <pads = [1,1,1,1]> (x, w)", "z = ConvTranspose <pads = [1,1,1,1]> (g, w)"
    yield np.random.default_rng(1).normal(size=filters), f"agraph ({images} {{ {conv} {back} }}"
    yield (
        square,
        f"agraph ({both} {{ lw = Cast <to = 16> (w) lx = Cast <to = 16> (x) lg = Cast <to = 16> (g) "
        "ly = MatMul (lx, lw) y = Cast <to = 1> (ly) t = Transpose <perm = [1, 0]> (lw) "
        "lz = MatMul (lg, t) z = Cast <to = 1> (lz) }",
    )


@pytest.mark.parametrize(("constant", "graph"), [*_shared_constants()])
def test_constants_that_several_kernels_read(constant, graph, bf16_units):
    model = parse_model(graph, 22)
    model.graph.initializer.append(numpy_helper.from_array(constant.astype(np.float32), "w"))
    rng = np.random.default_rng(2)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name in "xg"}
    values = RUNTIME.load(model, "cpu").run(feeds)
    if "Cast" in graph:
        expected = {"y": feeds["x"] @ constant, "z": feeds["g"] @ constant.T}
    else:
        expected = ORT.load(model, "cpu").run(feeds)
    for name, value in expected.items():
        error = np.abs(values[name] - value).max() / np.abs(value).max()
        assert error < (0.01 if "Cast" in graph else 1e-5), name


def test_constants_are_rounded_to_nearest(bf16_units):
    """Folded by OpenVINO, half of them lost bits instead."""
    numbers = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    model = parse_model(
        "agraph (float[64,4] x) => (float[64,4] y) { l = Cast <to = 16> (c) "
        "m = Cast <to = 1> (l) y = Add (x, m) }",
        22,
    )
    model.graph.initializer.append(numpy_helper.from_array(numbers, "c"))
    values = RUNTIME.load(model, "cpu").run({"x": np.zeros_like(numbers)})
    rounded = numbers.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(values["y"], rounded)


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("factor", ["Mul (c, h)", "Div (c, h)", "Mul (c, channels)"])
@pytest.mark.parametrize("other", ["Conv", "ConvTranspose"])
def test_a_factor_behind_a_grouped_convolution_is_its_own(group, factor, other):
    """It was multiplied into the weights for their other reader, the gradient of the input, as well."""
    attributes = f"<pads = [1, 1, 1, 1], group = {group}>"
    graph = f"""
    agraph (float[2,4,8,8] x, float[2,4,8,8] g, float[4,{4 // group},3,3] w)
        => (float[2,4,8,8] y, float[2,4,8,8] z, float[2,4,8,8] s)
        <float h = {{0.5}}, float[1,4,1,1] channels = {{0.5, 2, 3, 4}}> {{
      c = Conv {attributes} (x, w)
      y = {factor}
      z = {other} {attributes} (g, w)
      s = Conv {attributes} (g, w)
    }}
    """
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 8, 8), "g": (2, 4, 8, 8), "w": (4, 4 // group, 3, 3)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    values, expected = (r.load(parse_model(graph, 20), "cpu").run(feeds) for r in (RUNTIME, ORT))
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


UNREAD = """agraph (TYPE x, int64 turns, bool goes) => (TYPE y) <int64 two = {2}, bool yes = {1}> {
  y = If (goes) <then_branch = counted () => (TYPE z) {
    z = Loop (turns, yes, x) <body = outer (int64 i, bool on, TYPE s) => (bool so, TYPE t) {
      so = Identity (on)
      BODY
    }>
  }, else_branch = asked () => (TYPE w) {
    w = Loop (two, goes, x) <body = turn (int64 j, bool on2, TYPE s2) => (bool so2, TYPE t2) {
      so2 = Identity (on2)
      t2 = Neg (x)
    }>
  }>
}"""
NESTED = """t = Loop (two, yes, x) <body = inner (int64 k, bool on3, TYPE s3) => (bool so3, TYPE t3) {
  so3 = Identity (on3)
  t3 = Add (s3, x)
}>"""


@pytest.mark.parametrize("body", ["t = Neg (x)", "dead = Neg (s) t = Neg (x)", NESTED])
@pytest.mark.parametrize("kind", ["float[3]", "int64[2,3]", "float"])
@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize("goes", [True, False])
def test_a_state_that_the_body_does_not_read_is_kept(body, kind, turns, goes):
    """A loop that did not turn gave zeros, or no elements, in place of the first value."""
    model = parse_model(UNREAD.replace("BODY", body).replace("TYPE", kind), 21)
    shape = {"float[3]": (3,), "int64[2,3]": (2, 3), "float": ()}[kind]
    x = (np.arange(np.prod(shape)).reshape(shape) - 1).astype(np.int64 if "int" in kind else np.float32)
    feeds = {"x": x, "turns": np.array(turns), "goes": np.array(goes)}
    ours, exact = (r.load(model, "cpu").run(feeds)["y"] for r in (RUNTIME, ORT))
    np.testing.assert_array_equal(ours, exact)
