"""Carrying out plans: golden graphs per rule, and what is kept."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.stamp import read_stamp
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.plan.rewrite import rewrite
from tests.conftest import parse_model


def text_of(model):
    """Nodes as ``outputs = op(inputs)``, in order."""
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in model.graph.node]


BRANCHES = """g (float[2,2] x, bool c) => (float[2,2] y)
    { [a] h = MatMul(x, x) [b] k = Relu(h) [c] q = If(c) <
        then_branch = t () => (float[2,2] r) TENSOR, else_branch = e () => (float[2,2] s) { s = Neg(h) }>
      [d] y = MatMul(q, k) }"""


@pytest.mark.parametrize(
    "branch", ["{ h_fp16 = Neg(h) r = Neg(h_fp16) }", "<float k_fp16 = {2}> { r = Mul(h, k_fp16) }"]
)
def test_new_names_are_not_those_of_tensors_of_bodies(lower, run, branch):
    lowered = lower(BRANCHES.replace("TENSOR", branch), ["a", "b", "d"])
    onnx.checker.check_model(lowered.model, full_check=True)
    run(emulate(lowered.model), {"x": np.eye(2, dtype=np.float32), "c": np.array(True)})


NORMALIZED = """g (float[8,16] x, float[16,16] w) => (float[8,16] y)
    <float[16] scale = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, float two = {2}, float epsilon = {0.001}> {
      [product] h = MatMul(x, w) [mean] m = ReduceMean<axes=[-1]>(h) [difference] d = Sub(h, m)
      [square] s = Pow(d, two) [variance] v = ReduceMean<axes=[-1]>(s) [sum] e = Add(v, epsilon)
      [root] r = Sqrt(e) [quotient] q = Div(d, r) [scaled] n = Mul(q, scale) [shifted] z = Add(n, scale)
      [last] y = MatMul(z, w) }"""


@pytest.mark.parametrize(
    ("low", "opset", "is_product"),
    [
        (["product"], 17, True),
        (["product", "mean", "difference"], 17, True),
        (["scaled", "shifted"], 17, True),
        (["last"], 17, False),
        (["product"], 16, False),
    ],
)
@pytest.mark.parametrize("is_node", [False, True], ids=["stored", "computed"])
def test_a_normalization_of_two_precisions_loads_with_every_fusion(
    model_text, lower, run, low, opset, is_product, is_node
):
    text = NORMALIZED.replace("[square]", "[same] two_again = Constant<value_float=2.0>() [square]")
    text = text.replace("Pow(d, two)", "Pow(d, two_again)") if is_node else text
    lowered = lower(model_text(text, opset=opset), low)
    model = lowered.model
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert lowered.nodes["square"].op_type == ("Mul" if is_product else "Pow")
    assert ("two" in {tensor.name for tensor in model.graph.initializer}) == (is_node or not is_product)
    feeds = {"x": np.eye(8, 16, dtype=np.float32), "w": np.eye(16, dtype=np.float32)}
    expected = run(lowered.imported.model, feeds)["y"]
    np.testing.assert_allclose(run(emulate(model), feeds)["y"], expected, rtol=0.01)


# --- one rule each ---


@pytest.mark.parametrize(
    ("graph", "low", "expected"),
    [
        pytest.param(
            "g (float[2] x) => (float[2] y) { [a] h = Relu(x) [b] k = Neg(h) [c] y = Abs(k) }",
            ["b"],
            ["h = Relu(x)", "h_fp16 = Cast(h)", "k_fp16 = Neg(h_fp16)", "k = Cast(k_fp16)", "y = Abs(k)"],
            id="a Cast at each boundary",
        ),
        pytest.param(
            "g (float[2] x) => (float[2] y) { [a] h = Relu(x) [b] y = Neg(h) }",
            ["a", "b"],
            ["x_fp16 = Cast(x)", "h_fp16 = Relu(x_fp16)", "y_fp16 = Neg(h_fp16)", "y = Cast(y_fp16)"],
            id="inputs and outputs of the graph stay FP32",
        ),
        pytest.param(
            "g (float[2] x) => (float[2] y, float[2] z) { [a] y = Relu(x) [b] z = Add(x, y) }",
            ["a", "b"],
            [
                "x_fp16 = Cast(x)",
                "y_fp16 = Relu(x_fp16)",
                "y = Cast(y_fp16)",
                "z_fp16 = Add(x_fp16, y_fp16)",
                "z = Cast(z_fp16)",
            ],
            id="low readers of an output read its low version; one Cast serves both readers of x",
        ),
        pytest.param(
            "g (float[2] x) => (float[2] y, float[2] z) { [a] h = Relu(x) [b] y = Neg(h) [c] z = Abs(h) }",
            ["a"],
            ["x_fp16 = Cast(x)", "h_fp16 = Relu(x_fp16)", "h = Cast(h_fp16)", "y = Neg(h)", "z = Abs(h)"],
            id="FP32 readers share one Cast back, and read the old name",
        ),
        pytest.param(
            "g (float[2] x) => (float[2] y) { [a] y = Add(x, x) }",
            ["a"],
            ["x_fp16 = Cast(x)", "y_fp16 = Add(x_fp16, x_fp16)", "y = Cast(y_fp16)"],
            id="a tensor read twice by one node",
        ),
        pytest.param(
            "g (float[2] x, float[2] x_fp16) => (float[2] y) { [a] y = Add(x, x_fp16) }",
            ["a"],
            [
                "x_fp16_1 = Cast(x)",
                "x_fp16_fp16 = Cast(x_fp16)",
                "y_fp16 = Add(x_fp16_1, x_fp16_fp16)",
                "y = Cast(y_fp16)",
            ],
            id="taken names are avoided",
        ),
        pytest.param(
            "g (float[4] x) => (float[2,2] y, int64[2] i) <int64[1] o = {1}, int64[2] t = {2, 2}> {"
            "[a] h = Relu(x) s = Shape(h) k = Concat<axis = 0>(s, o)"
            "[b] n = Neg(h) [c] y = Reshape(n, t) i = Identity(k) }",
            ["a", "b", "c"],
            [
                "x_fp16 = Cast(x)",
                "h_fp16 = Relu(x_fp16)",
                "s = Shape(h_fp16)",
                "k = Concat(s, o)",
                "n_fp16 = Neg(h_fp16)",
                "y_fp16 = Reshape(n_fp16, t)",
                "y = Cast(y_fp16)",
                "i = Identity(k)",
            ],
            id="a reader of the shape takes what is there",
        ),
        pytest.param(
            "g (bool[2] m, float[2] x) => (float[2] y) { [a] f = Cast<to = 1>(m) [b] y = Mul(f, x) }",
            ["a", "b"],
            ["f_fp16 = Cast(m)", "x_fp16 = Cast(x)", "y_fp16 = Mul(f_fp16, x_fp16)", "y = Cast(y_fp16)"],
            id="a Cast from truth values makes the low type at once",
        ),
        pytest.param(
            "g (int64[2] m, float[2] x) => (float[2] y) { [a] f = Cast<to = 1>(m) [b] y = Mul(f, x) }",
            ["b"],
            ["f_fp16 = Cast(m)", "x_fp16 = Cast(x)", "y_fp16 = Mul(f_fp16, x_fp16)", "y = Cast(y_fp16)"],
            id="a Cast from integers makes what all its readers want, not FP32 for another Cast",
        ),
        pytest.param(
            "g (int64[2] m, float[2] x) => (float[2] y, float[2] z)"
            "{ [a] f = Cast<to = 1>(m) [b] y = Mul(f, x) [c] z = Add(f, x) }",
            ["b"],
            [
                "f = Cast(m)",
                "f_fp16 = Cast(f)",
                "x_fp16 = Cast(x)",
                "y_fp16 = Mul(f_fp16, x_fp16)",
                "y = Cast(y_fp16)",
                "z = Add(f, x)",
            ],
            id="a Cast from integers that somebody reads in FP32 makes FP32",
        ),
        pytest.param(
            "g (float[2] x, bool c) => (float[2] y) { [a] h = Relu(x) [b] k = Neg(h) y = If (c) <"
            "then_branch = t () => (float[2] o) { o = Add(h, k) },"
            "else_branch = e () => (float[2] p) { p = Identity(h) }> }",
            ["a", "b"],
            [
                "x_fp16 = Cast(x)",
                "h_fp16 = Relu(x_fp16)",
                "h = Cast(h_fp16)",
                "k_fp16 = Neg(h_fp16)",
                "k = Cast(k_fp16)",
                "y = If(c)",
            ],
            id="what bodies capture stays FP32 under its name",
        ),
    ],
)
def test_golden(lower, well_cast, graph, low, expected):
    lowered = lower(graph, low)
    assert text_of(lowered.model) == expected
    well_cast(lowered.imported, lowered.model)
    onnx.checker.check_model(lowered.model, full_check=True)


def test_empty_outputs_keep_their_position(lower):
    lowered = lower(
        "g (float[1,1,4,4] dy, float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,3,3] dw)"
        '{ [n] "", dw = com.microsoft.ConvGrad<pads = [1,1,1,1]>(dy, x, w) }'
    )
    assert list(lowered.nodes["n"].output) == ["", "dw_fp16"]


def test_empty_inputs_keep_their_position(lower, run, integers):
    lowered = lower("g (float[1,1,2,2] x, float[4] s) => (float[1,1,4,4] y) { [n] y = Resize(x, , s) }")
    assert list(lowered.nodes["n"].input) == ["x_fp16", "", "s"]
    feeds = {"x": integers(1, 1, 2, 2), "s": np.array([1, 1, 2, 2], np.float32)}
    np.testing.assert_array_equal(run(lowered.model, feeds)["y"], run(lowered.imported.model, feeds)["y"])


# --- constants ---


def initializers(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def test_an_initializer_read_low_only_is_converted_in_the_file(lower):
    weights = initializers(
        lower("g (float[2] x) => (float[2] y) <float[2] w = {1, 2.5}> { y = Add(x, w) }").model
    )
    assert weights.keys() == {"w_fp16"}
    assert weights["w_fp16"].dtype == np.float16
    assert weights["w_fp16"].tolist() == [1, 2.5]


def test_an_initializer_read_by_both_has_two_versions(lower):
    graph = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [a] h = Add(x, w) [b] y = Mul(h, w) }"
    lowered = lower(graph, ["a"])
    assert initializers(lowered.model).keys() == {"w", "w_fp16"}
    assert list(lowered.nodes["b"].input) == ["h", "w"]
    assert not any("w" in pair[0] for pair in lowered.casts)


def test_an_initializer_that_is_an_output_stays(lower):
    graph = "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }"
    assert initializers(lower(graph).model).keys() == {"w", "w_fp16"}


def test_an_initializer_that_is_an_input_is_cast_because_it_may_be_overridden(lower, run):
    graph = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    lowered = lower(graph)
    assert ("w", "w_fp16") in lowered.casts
    x = np.zeros(2, np.float32)
    assert run(lowered.model, {"x": x})["y"].tolist() == [1, 2]
    assert run(lowered.model, {"x": x, "w": np.array([5, 6], np.float32)})["y"].tolist() == [5, 6]


def test_a_constant_node_read_low_only_becomes_an_initializer(lower):
    graph = "g (float[2] x) => (float[2] y) { k = Constant<value_floats = [1.0, 2.0]>() y = Add(x, k) }"
    lowered = lower(graph)
    assert "Constant" not in {n.op_type for n in lowered.model.graph.node}
    assert initializers(lowered.model)["k_fp16"].tolist() == [1, 2]


def test_an_initializer_captured_by_a_body_stays(lower):
    graph = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
        h = Add(x, w)
        y = If (c) <then_branch = t () => (float[2] o) { o = Add(h, w) },
                    else_branch = e () => (float[2] p) { p = Identity(h) }>
    }"""
    assert initializers(lower(graph).model).keys() == {"w", "w_fp16"}


@pytest.mark.parametrize(
    ("op", "bound", "precision"),
    [("ThresholdedRelu", "alpha", one) for one in low_precisions()] + [("Shrink", "lambd", Precision.FP16)],
)
@pytest.mark.parametrize("value", [np.nextafter(np.float32(3), np.float32(0)), 0.1, 1 / 3, 3.0])
def test_a_bound_parts_low_numbers_as_before_when_kernels_round_it(lower, precision, op, bound, value):
    graph = f"g (float[1] x) => (float[1] y) {{ [n] y = {op}<{bound} = {float(value)}>(x) }}"
    node = lower(parse_model(graph, 22), ["n"], precision).nodes["n"]
    (attribute,) = node.attribute
    dtype = onnx.helper.tensor_dtype_to_np_dtype(precision.onnx_dtype)
    rounded = np.array(attribute.f).astype(dtype)
    assert rounded == attribute.f
    around = np.array(value).astype(dtype)
    near = [np.nextafter(around, dtype.type(end)) for end in (-np.inf, np.inf)]
    for number in (*near, around):
        assert (number > rounded) == (float(number) > np.float32(value))


# --- Casts that exist ---


def test_an_existing_low_version_is_read_instead_of_a_new_cast(lower, well_cast):
    graph = """g (float[2] x) => (float16[2] z, float[2] y) {
        [c] h = Cast<to = 10>(x)  z = Neg(h)  [n] y = Abs(x)
    }"""
    lowered = lower(graph, ["n"])
    assert list(lowered.nodes["n"].input) == ["h"]
    assert [pair for pair in lowered.casts if pair[0] == "x"] == [("x", "h")]
    well_cast(lowered.imported, lowered.model)


def test_an_existing_cast_moves_up_to_its_new_reader(lower):
    graph = """g (float[2] x) => (float16[2] h, float[2] y) {
        [n] y = Abs(x)  [c] h = Cast<to = 10>(x)
    }"""
    lowered = lower(graph, ["n"])
    assert list(lowered.nodes) == ["c", "n", "y_fp16_to_fp32"]


def test_an_existing_cast_of_what_becomes_low_goes(lower):
    graph = "g (float[2] x) => (float16[2] h) { [n] k = Abs(x) [c] h = Cast<to = 10>(k) }"
    lowered = lower(graph, ["n"])
    assert text_of(lowered.model) == ["x_fp16 = Cast(x)", "h = Abs(x_fp16)"]


def test_a_cast_up_whose_readers_all_became_low_goes(lower):
    graph = """g (float16[2] h) => (float16[2] z) {
        [up] x = Cast<to = 1>(h) [n] k = Abs(x) [down] z = Cast<to = 10>(k)
    }"""
    assert text_of(lower(graph, ["n"]).model) == ["z = Abs(h)"]


def test_a_dead_cast_that_was_dead_before_is_none_of_our_business(lower):
    graph = "g (float[2] x) => (float[2] y) { [dead] h = Cast<to = 10>(x) [n] y = Abs(x) }"
    assert "dead" in lower(graph, []).nodes


# --- what is kept ---


def test_metadata_and_documentation_are_kept(model_text, lower):
    model = model_text("g (float[2] x) => (float[2] y) { [n] h = Abs(x) [m] y = Neg(h) }", 17, 8)
    model.producer_name, model.doc_string, model.graph.doc_string = "exporter", "model", "graph"
    model.graph.node[0].doc_string = "Backward pass"
    model.metadata_props.add(key="theirs", value="1")
    mixed = lower(model).model
    assert (mixed.producer_name, mixed.doc_string, mixed.graph.doc_string) == ("exporter", "model", "graph")
    assert {n.name: n.doc_string for n in mixed.graph.node}["n"] == "Backward pass"
    assert "theirs" in {entry.key for entry in mixed.metadata_props}
    assert (mixed.ir_version, mixed.opset_import) == (model.ir_version, model.opset_import)


def test_declared_types_follow(model_text, lower):
    model = model_text("""g (float[2] x) => (float[2] y) <float[2] h, float[2] k> {
        [a] h = Relu(x) [b] k = org.pytorch.aten.ATen(h) [c] y = Neg(k)
    }""")
    mixed = lower(model, ["a"]).model
    declared = {value.name: value.type.tensor_type.elem_type for value in mixed.graph.value_info}
    assert declared == {"h": 1, "h_fp16": 10, "k": 1, "x_fp16": 10}


def test_the_given_model_is_not_changed(lower):
    lowered = lower("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }", [])
    before = lowered.imported.model.SerializeToString()
    rewrite(
        lowered.imported, lower("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }").plan
    )
    assert lowered.imported.model.SerializeToString() == before


def test_the_result_carries_a_stamp(lower):
    stamp = read_stamp(lower("g (float[2] x) => (float[2] y) { y = Neg(x) }").model)
    assert (stamp.strategy, stamp.device, stamp.low) == ("test", "h200", "fp16")


def test_a_plan_for_another_graph_is_refused(lower):
    one = lower("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    other = lower("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    with pytest.raises(PlanMismatchError, match="does not fit the model"):
        rewrite(one.imported, other.plan)
    with pytest.raises(PlanMismatchError):
        rewrite(one.imported, replace(one.plan, digest=""))


def test_a_reader_of_the_shape_of_a_statistic_of_a_low_normalization(lower, run):
    lowered = lower(
        "g (float[2,4] x, float[4] s) => (float[2,4] y, int64[2] shape) {"
        "[n] y, mean = LayerNormalization(x, s, s) [shape_of] shape = Shape(mean) }",
        ["n"],
    )
    assert lowered.nodes["shape_of"].input == ["mean"]
    feeds = {"x": np.ones((2, 4), np.float32), "s": np.ones(4, np.float32)}
    assert run(lowered.model, feeds)["shape"].tolist() == [2, 1]
