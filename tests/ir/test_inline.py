"""Local functions: inlined, converted where their opset is another, left alone where that fails."""

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from onnx import parser

from campo_onnx.errors import ModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.inline import inline_functions

GRAPH = "g (float[2, 3] x) => (float[2, 3] y) { h = local.F (x) y = local.F (h) }"

OLD_MAX = "m = ReduceMax <axes = [1]> (a) b = Sub(a, m)"


def model(body, *, opset=20, function_opset=20, graph=GRAPH, more=""):
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "local": 1{more}]> {graph} '
        f'<opset_import: ["": {function_opset}{more}], domain: "local"> F (a) => (b) {{ {body} }}'
    )


def run(proto, x):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def converted(proto):
    typed = onnx.shape_inference.infer_shapes(proto)
    return onnx.inliner.inline_local_functions(typed, convert_version=True)


def ops(imported):
    return [node.op.op_type for node in imported.view.nodes]


def test_a_model_without_functions_is_returned_itself(model_text):
    proto = model_text("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    assert inline_functions(proto) is proto


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_a_function_of_another_opset_is_inlined(opset):
    proto = model("c = Add(a, a) b = Relu(c)", function_opset=opset)
    before = proto.SerializeToString()
    imported = import_model(proto)
    assert ops(imported) == ["Add", "Relu", "Add", "Relu"]
    assert not imported.model.functions
    assert proto.SerializeToString() == before


def test_a_function_is_converted_to_the_models_opset():
    # Axes of ReduceMax are an attribute at 13 and an input at 20: the converter adds a Constant to each
    # copy, and calls them all the same.
    imported = import_model(model(OLD_MAX, function_opset=13))
    onnx.checker.check_model(imported.model, full_check=True)
    assert ops(imported).count("ReduceMax") == 2
    reduced = [node for node in imported.model.graph.node if node.op_type == "ReduceMax"]
    assert not any(attribute.name == "axes" for node in reduced for attribute in node.attribute)
    x = np.array([[1, 5, 2], [7, 3, 4]], np.float32)
    once = x - x.max(1, keepdims=True)
    np.testing.assert_array_equal(run(imported.model, x), once - once.max(1, keepdims=True))


def test_types_found_for_the_conversion_are_not_written_into_the_model():
    proto = model("c = Add(a, a) b = Relu(c)", function_opset=18)
    assert not inline_functions(proto).graph.value_info
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", 1, [2, 3]))
    assert [value.name for value in inline_functions(proto).graph.value_info] == ["h"]


def test_what_cannot_be_converted_stays_a_function():
    proto = model("b = foreign.Op(a)", function_opset=18, more=', "foreign": 1')
    imported = import_model(proto)
    assert ops(imported) == ["F", "F"]
    assert len(imported.model.functions) == 1


@pytest.mark.parametrize("error", [ValueError("vector::reserve"), MemoryError()])
def test_what_onnx_fails_at_in_another_way_stays_a_function(monkeypatch, error):
    def fails(_):
        raise error

    proto = model("c = Add(a, a) b = Relu(c)", function_opset=18)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    assert [node.op_type for node in inline_functions(proto).graph.node] == ["F", "F"]


def test_what_cannot_be_converted_and_is_invalid_is_refused():
    # Gelu came with opset 20, so a model of 18 cannot hold it.
    with pytest.raises(ModelError, match="imports version 20 whereas model imports version 18"):
        import_model(model("b = Gelu(a)", opset=18, function_opset=20))


def test_a_name_of_the_converter_that_is_taken_leaves_the_function_alone():
    # The second copy would hide the model's own tensor from those who read it further down.
    proto = model(
        OLD_MAX,
        function_opset=13,
        graph="""g (float[2, 3] x) => (float[2, 3] y) {
            _v_5 = local.F (x) z = Neg (x) w = local.F (z) y = Add (w, _v_5)
        }""",
    )
    outputs = [name for node in converted(proto).graph.node for name in node.output]
    assert outputs.count("_v_5") == 2, "the converter gives other names now: choose a name that it gives"
    assert [node.op_type for node in inline_functions(proto).graph.node] == ["F", "Neg", "F", "Add"]


HEADER = '<ir_version: 10, opset_import: ["": 20, "local": 1]>'
F = '<opset_import: ["": 20{0}], domain: "local">'
LEAK = "F <slope: float = 0.3> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"
WITH_DEFAULTS = {
    "in the graph": f"g (float[2, 3] x) => (float[2, 3] y) {{ y = local.F (x) }} {F.format('')} {LEAK}",
    "stated beside left out": f"""g (float[2, 3] x) => (float[2, 3] y) {{
        h = local.F <slope = 0.5> (x) n = Neg (h) y = local.F (n) }} {F.format("")} {LEAK}""",
    "in another function": f"""g (float[2, 3] x) => (float[2, 3] y) {{ y = local.G (x) }}
        {F.format("")} {LEAK} {F.format(', "local": 1')} G (a) => (b) {{ b = local.F (a) }}""",
    "passed on by another function": f"""g (float[2, 3] x) => (float[2, 3] y) {{ y = local.G (x) }}
        {F.format("")} {LEAK} {F.format(', "local": 1')}
        G <own: float = 0.7> (a) => (b) {{ b = local.F <slope: float = @own> (a) }}""",
    "in a body": f"""g (float[2, 3] x, bool c) => (float[2, 3] y) {{
        y = If (c) <then_branch = t () => (float[2, 3] p) {{ p = local.F (x) }},
                    else_branch = e () => (float[2, 3] q) {{ q = Neg (x) }}> }} {F.format("")} {LEAK}""",
    "of another opset": f"""g (float[2, 3] x) => (float[2, 3] y) {{ y = local.F (x) }}
        <opset_import: ["": 18], domain: "local"> {LEAK}""",
}
X = np.array([[-1, 5, -2], [7, -3, 4]], np.float32)


def outputs_of(proto):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": X, "c": np.array(True)}
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]


@pytest.mark.parametrize("case", WITH_DEFAULTS)
def test_default_attributes_of_functions_are_not_lost(case):
    proto = parser.parse_model(f"{HEADER} {WITH_DEFAULTS[case]}")
    before = proto.SerializeToString()
    imported = import_model(proto)
    assert not imported.model.functions
    np.testing.assert_array_equal(outputs_of(imported.model), outputs_of(proto))
    assert proto.SerializeToString() == before


def test_an_attribute_that_is_left_out_lets_the_default_of_a_call_apply():
    """LeakyRelu: 0.5 of 0.5, then F's default of 0.3 and the 0.01 of the operator itself."""
    text = f"""g (float[2, 3] x) => (float[2, 3] y) {{
            h = local.G <own = 0.5> (x) n = Neg (h) y = local.G (n) }}
        {F.format("")} {LEAK} {F.format(', "local": 1')}
        G <own> (a) => (b) {{
            l = local.F <slope: float = @own> (a) b = LeakyRelu <alpha: float = @own> (l) }}"""
    once = np.where(X < 0, X * 0.25, X)
    twice = np.where(-once < 0, -once * np.float32(0.3 * 0.01), -once)
    np.testing.assert_allclose(outputs_of(import_model(parser.parse_model(f"{HEADER} {text}")).model), twice)
