"""Reading models: what is normalized, what is refused, and that nothing crashes on damaged files."""

import random
from contextlib import suppress

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import CAPTURE, TensorKind, Use
from campo_onnx.ops.key import OpKey

MLP = """g (float[N, 3] x, float[3, 4] w) => (float[N, 4] y) <float[4] b = {1, 2, 3, 4}> {
    [mm] h = MatMul(x, w)
    [add] s = Add(h, b)
    [act] y = Relu(s)
}"""


def test_a_file_and_a_model_in_memory_give_the_same_view(model_text, tmp_path):
    model = model_text(MLP)
    onnx.save(model, tmp_path / "m.onnx")
    from_file = import_model(tmp_path / "m.onnx", {"N": 8})
    in_memory = import_model(model, {"N": 8})
    assert from_file.view.digest == in_memory.view.digest
    assert (from_file.folder, in_memory.folder) == (tmp_path, None)


def test_the_given_model_is_never_changed(model_text):
    model = model_text(MLP)
    model.graph.node[0].name = model.graph.node[1].name = ""
    before = model.SerializeToString()
    import_model(model, {"N": 8})
    assert model.SerializeToString() == before


def test_an_output_without_a_shape_gets_its_number_of_axes(model_text):
    model = model_text(MLP)
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", TensorProto.FLOAT, [None, 4]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    imported = import_model(model, {"N": 8})
    onnx.checker.check_model(imported.model, full_check=True)
    first, second = imported.model.graph.output
    assert [dim.WhichOneof("value") for dim in first.type.tensor_type.shape.dim] == [None, None]
    assert (first.name, second) == ("y", model.graph.output[1])
    assert imported.view.tensors["y"].shape == (8, 4)


def test_what_nothing_tells_the_shape_of_is_named(model_text):
    model = model_text(MLP.replace("[act] y = Relu(s)", "[act] y = com.example.Act(s)"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.opset_import.add(domain="com.example", version=1)
    with pytest.raises(ModelError, match="the output 'y' of the model has no shape"):
        import_model(model, {"N": 8})
    model.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="the input 'w' of the model has no shape"):
        import_model(model, {"N": 8})


def test_the_view(model_text):
    view = import_model(model_text(MLP), {"N": 8}).view
    assert [node.name for node in view.nodes] == ["mm", "add", "act"]
    assert (view.inputs, view.outputs) == (("x", "w"), ("y",))
    assert view.tensors["s"].shape == (8, 4)
    kinds = {name: info.kind for name, info in view.tensors.items()}
    assert kinds["x"] is TensorKind.INPUT
    assert kinds["b"] is TensorKind.CONSTANT
    assert kinds["h"] is TensorKind.ACTIVATION
    assert view.tensors["y"].is_output


def test_unsorted_nodes_without_names_are_sorted_and_named(model_text):
    model = model_text("g (float[2] x) => (float[2] y) { y = Neg(h) h = Neg(x) }")
    imported = import_model(model)
    assert [node.outputs for node in imported.view.nodes] == [("h",), ("y",)]
    assert len({node.name for node in imported.view.nodes} - {""}) == 2


def test_local_functions_are_inlined():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "local": 1]> g (float[2] x) => (float[2] y)'
        "{ h = local.Twice(x) y = local.Twice(h) }"
        '<opset_import: ["": 20], domain: "local"> Twice (a) => (b) { b = Add(a, a) }'
    )
    imported = import_model(model)
    assert [node.op for node in imported.view.nodes] == [OpKey("", "Add")] * 2
    assert not imported.model.functions


def test_captures_of_bodies_are_readings(model_text):
    view = import_model(
        model_text("""g (float[2] x, bool c) => (float[2] y) {
            h = Relu(x)
            [branch] y = If (c) <then_branch = t () => (float[2] o) { o = Neg(h) },
                                 else_branch = e () => (float[2] p) { p = Identity(x) }>
        }""")
    ).view
    assert view.node["branch"].captures == ("h", "x")
    assert Use("branch", CAPTURE) in view.consumers["h"]


def test_sequences_and_optionals_have_no_dtype(model_text):
    view = import_model(
        model_text("g (seq(float[2]) q, int64 i) => (float[2] y) { h = SequenceAt(q, i) y = Neg(h) }")
    ).view
    assert view.tensors["q"].dtype == TensorProto.UNDEFINED


def test_a_constant_node_is_a_constant(model_text):
    imported = import_model(
        model_text(
            "g (float[2] x) => (float[2] y) { k = Constant<value_floats = [1.0, 2.0]>() y = Add(x, k) }"
        )
    )
    assert imported.view.tensors["k"].kind is TensorKind.CONSTANT
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(imported.constants["k"]), [1, 2])


def test_an_initializer_that_is_an_input_too_is_an_input(model_text):
    imported = import_model(
        model_text("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    )
    assert imported.view.tensors["w"].kind is TensorKind.INPUT
    assert "w" not in imported.constants


# --- what is refused ---


def test_dimensions_must_be_bound(model_text):
    with pytest.raises(UsageError, match="--dim N=SIZE"):
        import_model(model_text(MLP))


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        import_model(tmp_path / "missing.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        import_model(tmp_path)
    for name, payload, message in (
        ("empty", b"", "is empty"),
        ("text", b"hello, this is a text file\n" * 5, "is not an ONNX model"),
        ("random", random.Random(0).randbytes(5000), "is not an ONNX model"),
        ("graphless", onnx.ModelProto(ir_version=10).SerializeToString(), "holds no graph"),
    ):
        path = tmp_path / name
        path.write_bytes(payload)
        with pytest.raises(ModelError, match=message) as caught:
            import_model(path)
        assert str(path) in str(caught.value)


def test_a_tensor_file_is_no_model(tmp_path):
    path = tmp_path / "t.pb"
    path.write_bytes(onnx.numpy_helper.from_array(np.ones(4, np.float32), "t").SerializeToString())
    with pytest.raises(ModelError):
        import_model(path)


@pytest.mark.parametrize("seed", range(150))
def test_a_damaged_file_is_refused_or_read_but_never_a_crash(model_text, tmp_path, seed):
    chance = random.Random(seed)
    payload = bytearray(model_text(MLP.replace("N", "5")).SerializeToString())
    if seed % 3 == 0:
        payload = payload[: chance.randrange(len(payload))]
    else:
        for _ in range(seed % 4 + 1):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
    path = tmp_path / "m.onnx"
    path.write_bytes(bytes(payload))
    with suppress(UsageError, ModelError, UnsupportedModelError):
        import_model(path)


@pytest.mark.parametrize(("opset", "refused"), [(7, False), (13, False), (24, False), (999, True)])
def test_opsets(model_text, opset, refused):
    model = model_text("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset)
    if refused:
        with pytest.raises(UnsupportedModelError, match=f"uses opset {opset}"):
            import_model(model)
    else:
        assert import_model(model).view.opset[""] == opset


def test_no_standard_opset(model_text):
    model = model_text("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.opset_import[:]
    with pytest.raises(ModelError, match="no opset of the standard domain"):
        import_model(model)


@pytest.mark.parametrize("dtype", ["int64", "double"])
def test_nothing_to_plan(model_text, dtype):
    with pytest.raises(UnsupportedModelError, match="has no tensor in FP32, FP16 or BF16"):
        import_model(model_text(f"g ({dtype}[2] x) => ({dtype}[2] y) {{ y = Neg(x) }}"))
