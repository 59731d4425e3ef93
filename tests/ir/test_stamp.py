"""The mark of an earlier run."""

from dataclasses import replace

import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.ir.stamp import STAMP_KEY, Stamp, read_stamp, structure_digest, write_stamp

STAMP = Stamp(strategy="campo", lists="campo", device="h200", low="fp16", digest="")


@pytest.fixture
def stamped(model_text):
    model = model_text("g (float[2] x) => (float[2] y) { [n] h = Softmax<axis = 0>(x) [m] y = Neg(h) }")
    model.metadata_props.add(key="theirs", value="kept")
    write_stamp(model, replace(STAMP, digest=structure_digest(model.graph)))
    return model


def test_a_stamp_reads_back(stamped):
    assert read_stamp(stamped) == replace(STAMP, digest=structure_digest(stamped.graph))
    assert {entry.key: entry.value for entry in stamped.metadata_props}["theirs"] == "kept"


def test_there_is_one_stamp(stamped):
    write_stamp(stamped, STAMP)
    assert [entry.key for entry in stamped.metadata_props] == ["theirs", STAMP_KEY]


def change_an_edge(graph):
    graph.node[1].input[0] = "x"


def change_an_attribute(graph):
    graph.node[0].attribute[0].i = -1


def remove_a_node(graph):
    del graph.node[1]


def rename_a_node(graph):
    graph.node[0].name = "other"


@pytest.mark.parametrize("edit", [change_an_edge, change_an_attribute, remove_a_node, rename_a_node])
def test_an_edited_graph_has_no_stamp(stamped, edit):
    edit(stamped.graph)
    assert read_stamp(stamped) is None


@pytest.mark.parametrize("value", ["", "{}", "[]", "no json", '{"strategy": "campo", "year": 2022}'])
def test_a_foreign_stamp_is_none(stamped, value):
    stamped.metadata_props[1].value = value
    assert read_stamp(stamped) is None


def test_the_order_of_attributes_does_not_matter(model_text):
    text = "g (float[1,1,4] x) => (float y) {{ y = AveragePool<{}>(x) }}"
    one, other = (
        structure_digest(model_text(text.format(attributes)).graph)
        for attributes in ("kernel_shape = [2], strides = [2]", "strides = [2], kernel_shape = [2]")
    )
    assert one == other


def test_a_planned_graph_may_have_no_fp32_left(model_text):
    model = model_text("g (float16[2] x) => (float16[2] y) { [n] y = Neg(x) }")
    write_stamp(model, replace(STAMP, digest=structure_digest(model.graph)))
    assert import_model(model).stamp is not None
