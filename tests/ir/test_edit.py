"""Through graphsurgeon and back: nothing is lost on the way."""

import onnx
import pytest

from campo_onnx.ir.edit import model_of, take_apart, topology_of

RICH = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1], producer_name: "exporter",
    producer_version: "1.2", model_version: 7, doc_string: "a model">
g (float[N,4] x, bool c) => (float[N,4] y, float[4,4] w, float[N,4] x)
    <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[1] unread = {1}, float[N,4] h> {
    [mm] h = MatMul(x, w)
    [drop] d, "" = com.microsoft.BitmaskDropout(h)
    [branch] y = If (c) <then_branch = t () => (float[N,4] o) { o = Relu(h) },
                         else_branch = e () => (float[N,4] p) { p = Identity(h) }>
}"""


@pytest.fixture
def rich():
    model = onnx.parser.parse_model(RICH)
    model.graph.node[0].doc_string = "Backward pass"
    model.graph.node[0].metadata_props.add(key="origin", value="here")
    model.graph.doc_string = "a graph"
    model.graph.value_info[0].doc_string = "hidden"
    model.graph.metadata_props.add(key="g", value="1")
    model.metadata_props.add(key="m", value="2")
    annotation = model.graph.quantization_annotation.add(tensor_name="h")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    return model


def through(model, topology=None, **changes):
    settings = {
        "retyped": {},
        "dtype": 10,
        "attributes": {},
        "initializers": (),
        "dropped": frozenset(),
    } | changes
    names = {node.name for node in model.graph.node}
    return model_of(take_apart(topology or topology_of(model.graph), names), model, **settings)


def test_an_unchanged_model_comes_back_equal(rich):
    before = rich.SerializeToString(deterministic=True)
    assert through(rich).SerializeToString(deterministic=True) == before
    assert rich.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    "stem",
    [
        "alexnet_like",
        "bert2_mlm_sdpa",
        "bert_optimized_training",
        "cnn_artifacts_training_model",
        "cnn_optimized_training",
        "mlp",
        "resblocks",
    ],
)
def test_real_models_come_back_equal(request, stem):
    from campo_onnx.ir.sort import name_nodes

    model = onnx.load(request.config.rootpath / "tests" / "data" / f"{stem}.onnx")
    name_nodes(model.graph)
    assert through(model) == model


def test_a_new_tensor_is_described_like_the_one_it_is_a_version_of(rich):
    topology = topology_of(rich.graph)
    topology.nodes[0].outputs[0].name = "h_low"
    copy = through(rich, topology, retyped={"h_low": "h"})
    (info,) = [value for value in copy.graph.value_info if value.name == "h_low"]
    assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert info.type.tensor_type.shape == rich.graph.value_info[0].type.tensor_type.shape


def test_attributes_are_replaced_by_name():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g () => (float[2] y)'
        "{ [n] y = RandomUniform<dtype = 1, shape = [2], seed = 5.0>() }"
    )
    copy = through(model, attributes={"n": {"dtype": 10}})
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in copy.graph.node[0].attribute}
    assert attributes == {"dtype": 10, "shape": [2], "seed": 5.0}


def test_initializers_that_are_dropped_go_and_all_others_stay(rich):
    low = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(rich.graph.initializer[0]), "w_low")
    for dropped, left in ((frozenset(), {"w", "w_low", "unread"}), (frozenset({"w"}), {"w_low", "unread"})):
        topology = topology_of(rich.graph)
        topology.nodes[0].inputs[1].name = "w_low"
        copy = through(rich, topology, initializers=[low], dropped=dropped)
        assert {t.name for t in copy.graph.initializer} == left
