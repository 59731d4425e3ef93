"""Models from strangers: too large, going in circles, or malformed where ONNX's checker looks away."""

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.limits import MAX_CALL_DEPTH, MAX_DEPTH
from campo_onnx.ir.proto import set_metadata

HEADER = '<ir_version: 10, opset_import: ["": 20, "local": 1]>'
MAIN = "g (float[2] x) => (float[2] y) { y = local.F0 (x) }"
IMPORTS = '<opset_import: ["": 20, "local": 1], domain: "local">'


def calling(*bodies, main=MAIN):
    functions = " ".join(f"{IMPORTS} {name} (a) => (b) {{ {body} }}" for name, body in bodies)
    return parser.parse_model(f"{HEADER} {main} {functions}")


def chain(length, body):
    calls = [(f"F{i}", body.format(next=f"local.F{i + 1}")) for i in range(length)]
    return calling(*calls, (f"F{length}", "b = Relu(a)"))


def nested(depth):
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t0"])], "body", [], [floats("t0")])
    for level in range(1, depth + 1):
        node = helper.make_node("If", ["c"], [f"t{level}"], then_branch=then, else_branch=then)
        then = helper.make_graph([node], "body", [], [floats(f"t{level}")])
    inputs = [floats("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(then.node, "g", inputs, [floats(f"t{depth}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def floats(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (calling(("F0", "b = local.F0(a)")), "'F0' of the model calls itself"),
        (calling(("F0", "b = local.F1(a)"), ("F1", "b = local.F0(a)")), "'F0' of the model calls itself"),
        (calling(("F0", "b = Relu(a)"), ("F0", "b = Relu(a)")), "defines the function 'F0' twice"),
    ],
)
def test_functions_that_no_inliner_ends_with(proto, message):
    with pytest.raises(ModelError, match=message):
        import_model(proto)


def test_calls_with_more_inputs_than_the_function_has():
    main = "g (float[2] x) => (float[2] y) { [one] y = local.F0 (x, x) }"
    with pytest.raises(ModelError, match="the call 'one' of the function 'F0' in the model has 2 inputs"):
        import_model(calling(("F0", "b = Relu(a)"), main=main))


def test_a_type_that_onnx_has_not():
    proto = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    proto.graph.input.add(name="odd").type.sequence_type.elem_type.tensor_type.elem_type = 255
    with pytest.raises(ModelError, match="'odd' in the model has elements of type 255"):
        import_model(proto)


def test_functions_that_double_are_counted_not_inlined():
    with pytest.raises(UnsupportedModelError, match="more than 1,000,000 nodes"):
        import_model(chain(24, "h = {next}(a) b = {next}(h)"))
    assert len(import_model(chain(4, "h = {next}(a) b = {next}(h)")).view.nodes) == 2**4


def test_the_depth_of_calls_is_bounded():
    with pytest.raises(UnsupportedModelError, match=f"more than {MAX_CALL_DEPTH} deep"):
        import_model(chain(MAX_CALL_DEPTH + 1, "b = {next}(a)"))
    assert import_model(chain(MAX_CALL_DEPTH - 1, "b = {next}(a)")).view.nodes


def test_the_depth_of_bodies_is_bounded():
    assert import_model(nested(MAX_DEPTH - 1)).view.nodes
    with pytest.raises(UnsupportedModelError, match=f"more than {MAX_DEPTH} deep"):
        import_model(nested(MAX_DEPTH + 1))


def test_an_attribute_of_a_caller_outside_a_function():
    proto = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = LeakyRelu(x) }}")
    proto.graph.node[0].attribute.add(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    with pytest.raises(ModelError, match="refers to an attribute of a caller"):
        import_model(proto)


def test_a_name_for_two_initializers_or_inputs():
    proto = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Add(x, w) }}")
    for _ in range(2):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(ModelError, match="has 2 initializers named 'w'"):
        import_model(proto)
    del proto.graph.initializer[1]
    proto.graph.input.add().CopyFrom(proto.graph.input[0])
    with pytest.raises(ModelError, match="has 2 inputs named 'x'"):
        import_model(proto)


@pytest.mark.parametrize(("second", "version"), [("", 19), ("ai.onnx", 19)])
def test_a_domain_in_two_versions(second, version):
    proto = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    proto.opset_import.add(domain=second, version=version)
    with pytest.raises(ModelError, match="imports the standard domain in 2 versions"):
        import_model(proto)


def test_a_domain_twice_in_one_version_is_no_contradiction():
    proto = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    proto.opset_import.add(domain="ai.onnx", version=20)
    assert import_model(proto).view.opset[""] == 20


@pytest.fixture
def outside(tmp_path):
    """A model whose tensors all lie outside, its shape constant included."""
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2, 3] x) => (float[6] y)'
        "{ h = Mul(x, w) y = Reshape(h, s) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), np.float32), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([6]), "s"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_shapes_that_lie_outside_are_read(outside, tmp_path):
    imported = import_model(outside)
    assert imported.view.shape("y") == (6,)
    assert imported.data_files == {tmp_path / "w.bin"}
    export_model(imported.model, tmp_path / "again.onnx", folder=imported.folder)
    assert import_model(tmp_path / "again.onnx").digest == imported.digest


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("offset", "9" * 5000, "misstates its data"),
        ("length", "9" * 5000, "misstates its data"),
        ("offset", "²", "misstates its data"),
        ("offset", "-1", "misstates its data"),
        ("location", "w\0.bin", "outside the model's folder"),
        ("location", "w" * 300, "outside the model's folder"),
        ("location", "../w.bin", "outside the model's folder"),
        ("location", "other.bin", "is missing"),
    ],
)
def test_where_data_cannot_lie(outside, key, value, message):
    proto = onnx.load(outside, load_external_data=False)
    entries = {entry.key: entry.value for entry in proto.graph.initializer[1].external_data}
    del proto.graph.initializer[1].external_data[:]
    for name, text in (entries | {key: value}).items():
        proto.graph.initializer[1].external_data.add(key=name, value=text)
    outside.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=message):
        import_model(outside)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_a_model_that_would_never_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UsageError, match="is not a regular file"):
            import_model(path)


def test_a_file_larger_than_any_model_is_not_read(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="protobuf ends at 2 GiB"):
        import_model(path)


@pytest.mark.parametrize("name", ["m" * 300, "m\0"])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be read"):
        import_model(tmp_path / name)


@pytest.mark.parametrize("shape", ["9223372036854775807", "2097152, 2097152, 2", "0, 9223372036854775807"])
def test_sizes_that_no_tensor_has(shape):
    proto = parser.parse_model(f"{HEADER} g (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}")
    with pytest.raises(ModelError, match=r"the tensor 'x' of shape \[.*\] is too large"):
        import_model(proto)


def test_named_sizes_that_are_too_large_only_together():
    proto = parser.parse_model(f"{HEADER} g (float[N, N] x) => (float[N, N] y) {{ y = Relu(x) }}")
    assert import_model(proto, {"N": 1 << 21}).view.shape("y") == (1 << 21, 1 << 21)
    with pytest.raises(ModelError, match=r"is too large.*Are these sizes meant: --dim N=4194304\?"):
        import_model(proto, {"N": 1 << 22})


def test_sizes_that_are_computed():
    proto = parser.parse_model(
        f"{HEADER} g (float[2] x) => (float[A, B] y) <int64[2] s = {{2147483648, 2147483648}}>"
        "{ z = ConstantOfShape(s) y = Add(z, z) }"
    )
    with pytest.raises(ModelError, match=r"'z' of shape .* is too large"):
        import_model(proto)


@pytest.mark.parametrize("numbers", ["[1e999, 1, 8]", "[1, 8]", f"[4, 1, {10**23}]", "8", "[true, 1, 8]"])
def test_sizes_in_the_metadata_that_are_damaged(numbers):
    proto = parser.parse_model(f"{HEADER} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}")
    set_metadata(proto, "campo_onnx.sizes", f'{{"N": {numbers}}}')
    with pytest.raises(ModelError, match=r"the metadata 'campo_onnx\.sizes' of the model is damaged"):
        import_model(proto)


def test_constants_of_functions_count_for_each_call():
    model = chain(16, "h = {next}(a) b = {next}(h)")
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.ones(2048, np.float32))
    )
    model.functions[-1].node.append(constant)
    with pytest.raises(UnsupportedModelError, match="bytes of functions, one for each call"):
        import_model(model)


def test_more_axes_than_any_tensor_has():
    shape = ", ".join(["1"] * 65)
    proto = parser.parse_model(
        f"{HEADER} g (float[2] x) => (float[N, M] y) <int64[65] s = {{{shape}}}>"
        "{ z = ConstantOfShape(s) f = Flatten(z) y = Add(x, f) }"
    )
    with pytest.raises(ModelError, match="the tensor 'z' has 65 axes"):
        import_model(proto)
