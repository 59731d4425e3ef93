"""The standard domain has two names in files, and one behind the importer."""

import onnx
from onnx import parser

from campo_onnx.ir.domains import shorten_domains
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.key import OpKey

TEXT = """<ir_version: 10, opset_import: ["ai.onnx": 20, "com.microsoft": 1]>
g (float[2, 3] x, bool c) => (float y, float z) {
    y = com.microsoft.Gelu(x)
    z = If (c) <
        then_branch = a () => (float[2, 3] t) { t = Relu(x) },
        else_branch = b () => (float[2, 3] e) { e = Neg(x) }
    >
}"""


def spelled_out() -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    branch = model.graph.node[1]
    for node in (branch, *(inner for attribute in branch.attribute for inner in attribute.g.node)):
        node.domain = "ai.onnx"
    return model


def test_nodes_bodies_and_imports_are_written_the_short_way() -> None:
    model = spelled_out()
    shorten_domains(model)
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 20, "com.microsoft": 1}
    branch = model.graph.node[1]
    assert [branch.domain, *(a.g.node[0].domain for a in branch.attribute)] == ["", "", ""]


def test_the_importer_does_so_and_leaves_the_given_model() -> None:
    model = spelled_out()
    view = import_model(model).view
    assert view.opset == {"": 20, "com.microsoft": 1}
    assert view.nodes[1].op == OpKey("", "If")
    assert model == spelled_out()


def test_a_long_name_that_is_not_imported_is_the_short_one() -> None:
    model = parser.parse_model(TEXT.replace("ai.onnx", ""))
    model.graph.node[1].domain = "ai.onnx"
    assert import_model(model).view.nodes[1].op == OpKey("", "If")


def test_short_names_stay_as_they_are() -> None:
    model = parser.parse_model(TEXT.replace("ai.onnx", ""))
    payload = model.SerializeToString()
    shorten_domains(model)
    assert model.SerializeToString() == payload
