"""Places of maxima found by comparing, against those of ONNX Runtime's MaxPool."""

import numpy as np
import onnx
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine
from campo_onnx.training.pool_places import with_compared_places

TILES = "kernel_shape=[2,2], strides=[2,2]"


def pool(shape, attributes=TILES, opset=20, outputs="y, place"):
    after = [(shape[2]) // 2, (shape[3]) // 2]
    image, result = ",".join(map(str, shape)), ",".join(map(str, [*shape[:2], *after]))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{image}] x)'
        f" => (float[{result}] y, int64[{result}] place) {{ {outputs} = MaxPool<{attributes}>(x) }}"
    )


def compared(model):
    return with_compared_places(import_model(model))


def test_of_several_maxima_the_first_is_the_place():
    shape = (3, 5, 64, 80)
    model = pool(shape)
    x = np.random.default_rng(0).integers(-2, 2, shape).astype(np.float32)
    x[0, 0], x[1, 1, 10:20], x[2, 3, :4] = -np.inf, np.inf, -0.0
    x[2, 4, -2:, -2:] = [[0, 1], [2, 3]]
    changed = compared(model)
    assert "Equal" in {node.op_type for node in changed.graph.node}
    here = machine("cpu", 2)
    expected, actual = run(model, {"x": x}, here), run(changed, {"x": x}, here)
    assert all(np.array_equal(actual[name], expected[name]) for name in ("y", "place"))


def test_names_that_the_graph_has_are_left_to_it():
    model = pool((1, 4, 128, 128))
    model.graph.node[0].name = "pool"
    negation = model.graph.node.add(op_type="Neg", name="pool/largest/Resize")
    negation.input.append("x")
    negation.output.append("pool/largest")
    model.graph.output.append(onnx.ValueInfoProto(name="pool/largest", type=model.graph.input[0].type))
    x = np.random.default_rng(0).normal(size=(1, 4, 128, 128)).astype(np.float32)
    expected, actual = (run(m, {"x": x}, machine("cpu", 2)) for m in (model, compared(model)))
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "model",
    [
        pool((1, 2, 6, 8)),
        pool((4, 8, 65, 64)),
        pool((4, 8, 8, 2048)),
        pool((4, 8, 64, 64), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),
        pool((4, 8, 64, 64), f"{TILES}, storage_order=1"),
        pool((4, 8, 64, 64), opset=12),
    ],
    ids=["small", "odd", "wide", "overlapping", "by_columns", "old"],
)
def test_other_pools_stay_as_they_are(model):
    assert compared(model).graph.node == import_model(model).model.graph.node
