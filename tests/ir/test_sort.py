"""Unique names, topological order, and what bodies read from outside."""

import random

import onnx
import pytest

from campo_onnx.errors import ModelError
from campo_onnx.ir.sort import name_nodes, outer_reads, sort_nodes

CHAIN = "g (float[2] x) => (float[2] y) { [a] h = Relu(x) [b] k = Neg(h) [c] l = Add(h, k) [d] y = Abs(l) }"
LOOP = """g (float[2] x, int64 n, bool c) => (float[2] y) {
    [relu] h = Relu(x)
    [loop] y = Loop(n, c, x) <body = b (int64 i, bool go, float[2] a) => (bool stay, float[2] next) {
        [inner] next = Add(a, h)
        [stay] stay = Identity(go)
    }>
}"""


def names(graph):
    return [node.name for node in graph.node]


def test_the_first_of_a_name_keeps_it(model_text):
    model = model_text("g (float x) => (float y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Relu(c) }")
    for node, name in zip(model.graph.node, ["", "Relu", "n", "n"], strict=True):
        node.name = name
    name_nodes(model.graph)
    assert names(model.graph) == ["Relu_1", "Relu", "n", "n_1"]
    name_nodes(model.graph)
    assert names(model.graph) == ["Relu_1", "Relu", "n", "n_1"]


def test_a_sorted_graph_stays_as_it_is(model_text):
    model = model_text(CHAIN)
    before = model.SerializeToString()
    sort_nodes(model.graph)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("seed", range(5))
def test_any_order_becomes_topological(model_text, seed):
    model = model_text(CHAIN)
    nodes = list(model.graph.node)
    random.Random(seed).shuffle(nodes)
    shuffled = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(shuffled)
    sort_nodes(model.graph)
    assert names(model.graph) == ["a", "b", "c", "d"]


def test_a_body_is_sorted_too_and_its_outer_reads_count(model_text):
    model = model_text(LOOP)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(model.graph.node)]
    body = nodes[0].attribute[0].g
    swapped = onnx.NodeProto(op_type="Add", name="later", input=["mid", "h"], output=["next"])
    body.node[0].output[0] = "mid"
    body.node.insert(0, swapped)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    sort_nodes(model.graph)
    assert names(model.graph) == ["relu", "loop"]
    sorted_body = names(model.graph.node[1].attribute[0].g)
    assert sorted_body.index("inner") < sorted_body.index("later")


def test_outer_reads_are_what_a_body_does_not_make(model_text):
    loop = model_text(LOOP).graph.node[1]
    assert outer_reads(loop) == ("h",)


def test_outer_reads_reach_through_bodies_in_bodies(model_text):
    graph = model_text("""g (float x, bool c) => (float y) {
        y = If (c) <
            then_branch = t () => (float o) {
                o = If (c) <then_branch = u () => (float p) { p = Neg(x) },
                            else_branch = v () => (float q) { q = Relu(x) }>
            },
            else_branch = e () => (float r) { r = Identity(x) }
        >
    }""").graph
    assert set(outer_reads(graph.node[0])) == {"x", "c"}


def test_an_output_that_is_empty_is_no_tensor(model_text):
    model = model_text(
        "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,3,3] a, float[1,1,3,3] b)"
        '{ "", a = com.microsoft.ConvGrad(x, x, w) "", b = com.microsoft.ConvGrad(x, x, w) }'
    )
    sort_nodes(model.graph)
    assert [list(node.output) for node in model.graph.node] == [["", "a"], ["", "b"]]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float x) => (float y) { y = Relu(x) y = Neg(x) }", "'y' is made twice"),
        ("g (float x) => (float y) { x = Relu(x) y = Neg(x) }", "'x' is made twice"),
        ("g (float x) => (float y) { [lost] y = Add(x, z) }", "'lost' .*'z', which nothing makes"),
        ("g (float x) => (float y, float z) { y = Relu(x) }", "output 'z' is made by no node"),
        ("g (float x) => (float y) { [a] y = Add(x, h) [b] h = Relu(y) }", "wait for each other"),
    ],
)
def test_graphs_without_an_order_are_refused(model_text, graph, message):
    with pytest.raises(ModelError, match=message):
        sort_nodes(model_text(graph).graph)


def test_a_ring_names_each_node_once(model_text):
    graph = model_text("g (float x) => (float y) { [a] y = Add(x, h) [b] h = Relu(y) }").graph
    with pytest.raises(ModelError) as caught:
        sort_nodes(graph)
    assert sorted(caught.value.what.split()[2:4]) == ["a", "b,"] or sorted(
        caught.value.what.split()[2:4]
    ) == ["a,", "b"]
