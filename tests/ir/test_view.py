"""Keys, tensors, and the fingerprint that tells whether a plan fits."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import TensorInfo, TensorKind, Use
from campo_onnx.ops.key import OpKey

GRAPH = "g (float[N, 4] x) => (float[N, 4] y) { [a] h = Softmax<axis = 1>(x) [b] y = Add(h, h) }"


def tensor(dtype, shape):
    return TensorInfo(name="t", dtype=dtype, shape=shape, kind=TensorKind.ACTIVATION)


@pytest.mark.parametrize("key", [OpKey("", "Add"), OpKey("com.microsoft", "ConvGrad")])
def test_labels_read_back(key):
    assert OpKey.parse(key.label) == key


def test_the_long_name_of_the_standard_domain():
    assert OpKey.parse("ai.onnx:Add") == OpKey("", "Add")


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        (TensorProto.FLOAT, (2, 3), 24),
        (TensorProto.FLOAT, (), 4),
        (TensorProto.BFLOAT16, (5,), 10),
        (TensorProto.INT4, (5,), 2.5),
        (TensorProto.FLOAT, (0, 7), 0),
        (TensorProto.FLOAT, None, 0),
        (TensorProto.UNDEFINED, (3,), 0),
        (TensorProto.STRING, (3,), 0),
    ],
)
def test_sizes(dtype, shape, nbytes):
    assert tensor(int(dtype), shape).nbytes == nbytes


def test_inputs_that_share_a_name_but_for_its_first_part_are_trained(model_text):
    model = model_text("g (float[4] input, float[4] param) => (float[4] o) { o = Add(input, param) }")
    for value, name in zip(
        (*model.graph.input, *model.graph.output), ("input.0", "param.0", "grad.0"), strict=True
    ):
        value.name = name
    model.graph.node[0].input[:], model.graph.node[0].output[:] = ["input.0", "param.0"], ["grad.0"]
    assert not import_model(model).view.data_inputs


@pytest.mark.parametrize(
    ("output", "data"),
    [
        ("grad.fc.bias", ("buf.mean", "input.x")),
        ("new.fc.bias", ("buf.mean", "input.x")),
        ("buf_out.mean", ("param.fc.bias", "input.x")),
        ("param.fc.bias_grad", ("buf.mean", "input.x")),
        ("g", ("input.x",)),
    ],
)
def test_an_input_is_data_unless_an_output_has_its_shape_and_perhaps_its_name(model_text, output, data):
    text = """g (float[4] p, float[4] m, float[2, 4] x) => (float[4] o)
        { a = Add(p, m) b = Add(a, x) i = Constant<value_ints = [0]>() o = ReduceSum<keepdims = 0>(b, i) }"""
    model = model_text(text)
    names = {"p": "param.fc.bias", "m": "buf.mean", "x": "input.x", "o": output}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:], node.output[:] = ([names.get(t, t) for t in ts] for ts in (node.input, node.output))
    assert import_model(model).view.data_inputs == data


def test_readings_are_listed_by_position(model_text):
    view = import_model(model_text(GRAPH), {"N": 2}).view
    assert view.consumers["h"] == (Use("b", 0), Use("b", 1))
    assert "y" not in view.consumers
    assert view.producer["h"].name == "a"
    assert "x" not in view.producer


def test_the_digest_sees_shapes_attributes_edges_and_names(model_text):
    digests = {
        import_model(model_text(text), {"N": n}).view.digest
        for text, n in (
            (GRAPH, 2),
            (GRAPH, 3),
            (GRAPH.replace("axis = 1", "axis = 0"), 2),
            (GRAPH.replace("Add(h, h)", "Add(h, x)"), 2),
            (GRAPH.replace("[b]", "[c]"), 2),
        )
    }
    assert len(digests) == 5


def test_the_digest_sees_values_of_tensor_attributes(model_text):
    view = import_model(model_text(GRAPH), {"N": 2}).view

    def with_value(value):
        node = replace(view.nodes[0], attributes={"value": np.array([value], np.float32)})
        return replace(view, nodes=(node, view.nodes[1])).digest

    assert with_value(1) == with_value(1)
    assert with_value(1) != with_value(2)
