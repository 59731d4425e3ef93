"""Invalid models are refused with ONNX's reason; large tensors are not copied to find out."""

import numpy as np
import onnx
import pytest
from onnx import parser

from campo_onnx.errors import ModelError
from campo_onnx.ir.check import check_given, check_written
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model

VALID = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [n] y = Add(x, w) }"


def too_many_inputs(model):
    model.graph.node[0].input.append("x")


def unknown_operator(model):
    model.graph.node[0].op_type = "Ad"


def output_without_type(model):
    model.graph.output[0].ClearField("type")


def wrong_output_type(model):
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64


def wrong_output_shape(model):
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3


def same_initializer_twice(model):
    model.graph.initializer.append(model.graph.initializer[0])


def shortened_initializer(model):
    model.graph.initializer[0].dims[0] = 3


def newer_ir(model):
    model.ir_version = 99


@pytest.mark.parametrize(
    "spoil",
    [
        too_many_inputs,
        unknown_operator,
        output_without_type,
        wrong_output_type,
        wrong_output_shape,
        same_initializer_twice,
        shortened_initializer,
        newer_ir,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_invalid_models_are_refused_in_one_line(model_text, spoil):
    model = model_text(VALID)
    check_given(model, "m.onnx")
    spoil(model)
    with pytest.raises(ModelError, match=r"m\.onnx is not a valid ONNX model") as caught:
        check_given(model, "m.onnx")
    assert caught.value.why
    assert "\n" not in str(caught.value)


def test_the_bytes_of_large_and_external_tensors_are_not_asked_for(model_text):
    model = model_text("g (float[1000] x) => (float[1000] y) { k = Add(x, w) y = Add(k, v) }")
    large = onnx.numpy_helper.from_array(np.ones(1000, np.float32), "w")
    outside = onnx.TensorProto(name="v", data_type=1, dims=[1000], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="nowhere.bin")
    model.graph.initializer.extend([large, outside])
    before = model.SerializeToString()
    check_given(model, "m")
    assert model.SerializeToString() == before


def test_what_only_bodies_read_may_lie_outside_too(model_text):
    model = model_text("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] o) { o = Add(x, w) },
                    else_branch = e () => (float[2] p) { p = Identity(x) }>
    }""")
    outside = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="nowhere.bin")
    (then,) = [a.g for a in model.graph.node[0].attribute if a.name == "then_branch"]
    then.initializer.append(outside)
    check_given(model, "m")


def test_gradient_operators_of_onnx_runtime_pass_in_the_standard_domain(model_text, tmp_path):
    model = model_text(
        "g (float[1,1,2,2] dy, int64[1,1,2,2] at) => (float[1,1,4,4] dx) { dx = MaxPoolGrad(dy, at) }"
    )
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    check_given(model, "m")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    check_written(model, path)
    assert model.graph.node[0].domain == ""


def test_a_written_model_that_is_invalid_is_an_error_of_the_checker(model_text, tmp_path):
    model = model_text(VALID)
    wrong_output_type(model)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(onnx.shape_inference.InferenceError):
        check_written(model, tmp_path / "m.onnx")


def test_operators_of_onnx_runtime_pass_in_bodies_too(model_text):
    body = "y = SimplifiedLayerNormalization(x, s)"
    branches = (
        f"then_branch = t () => (float[2,4] a) {{ a = {body[4:]} }}, else_branch = e () => (float[2,4] b) "
    )
    model = model_text(
        "g (float[2,4] x, float[4] s, bool c) => (float[2,4] y) "
        f"{{ y = If(c) <{branches} {{ b = Identity(x) }}> }}"
    )
    check_given(model, "m")


def test_what_a_later_opset_has_is_refused_in_an_earlier_one(model_text):
    with pytest.raises(ModelError, match="No Op registered for Gelu"):
        check_given(model_text("g (float[2] x) => (float[2] y) { y = Gelu(x) }", 18), "m")


def test_onnx_is_not_asked_what_would_crash_it(model_text):
    """A test that fails here ends the whole run."""
    model = model_text(
        "g (float[8,3] x) => (float[3,3] y) "
        "{ h = com.microsoft.FusedMatMul<transA = 1>(x, x) y = EyeLike<dtype = 1>(h) }"
    )
    check_given(model, "m")
    view = import_model(model).view
    assert (view.tensors["y"].dtype, view.tensors["y"].shape) == (onnx.TensorProto.FLOAT, (3, 3))


IF = (
    "If(c) <then_branch = t () => (float[2,2] p) {{ {} }}, "
    "else_branch = e () => (float[2,2] q) {{ q = Identity(x) }}>"
)
IN_BODIES = {
    "of what a body makes": IF.format("h = com.microsoft.FusedMatMul(x, x) p = EyeLike<dtype = 1>(h)"),
    "of what is around it": IF.format("p = EyeLike<dtype = 1>(around)"),
    "two deep": IF.format(
        "p = If(c) <then_branch = u () => (float[2,2] r) { r = EyeLike<dtype = 1>(around) }, "
        "else_branch = v () => (float[2,2] s) { s = Identity(x) }>"
    ),
}


@pytest.mark.parametrize("what", IN_BODIES)
def test_nor_in_a_body(model_text, what):
    """A test that fails here ends the whole run."""
    model = model_text(
        "g (float[2,2] x, bool c) => (float[2,2] y) "
        f"{{ around = com.microsoft.FusedMatMul(x, x) y = {IN_BODIES[what]} }}"
    )
    check_given(model, "m")
    assert import_model(model).view.tensors["y"].shape == (2, 2)


BODY_OF_UNKNOWN_TYPES = """g (float[4,8] s, float[8,8] w, float[16,8] v, int64 n) => (float[4,8] y) {
    y = Loop <body = b (int64 i, bool c, float[4,8] t) => (bool d, float[4,8] r) {
        d = Identity (c)
        u = If (c) <then_branch = p () => (a) { a = com.microsoft.FusedMatMul (t, w) },
                    else_branch = q () => (e) { e = Neg (t) }>
        k = Concat <axis = 1> (u, t)
        r = MatMul (k, v) }> (n, , s)
}"""


def test_a_body_in_which_a_type_is_missing_is_no_contradiction(tmp_path):
    """ONNX's inference fails where it knows no type; ONNX Runtime loads such a file."""
    header = '<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>'
    model = parser.parse_model(f"{header} {BODY_OF_UNKNOWN_TYPES}")
    for value in (v for node in _inner(model.graph) for a in node.attribute for v in a.g.output):
        if value.name in ("a", "e"):
            value.ClearField("type")
    with pytest.raises(onnx.shape_inference.InferenceError, match="expected to have type"):
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    export_model(import_model(model).model, tmp_path / "out.onnx")
    broken = parser.parse_model(f"{header} {BODY_OF_UNKNOWN_TYPES.replace('(k, v)', '(t, v)')}")
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        import_model(broken)


def _inner(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _inner(attribute.g)
