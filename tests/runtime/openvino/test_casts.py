"""Casts of gathered BF16, which the plugin would do element by element within the Gather."""

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from onnx import TensorProto, helper

from campo_onnx.runtime.openvino.installed import ov
from campo_onnx.runtime.openvino.repairs import repair
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model

BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def graph_of(indices: str, results: str) -> str:
    return f"""
    agraph (float[6, 5, 4] x, int64[{indices}] i) => (float[{results}] y, float[{results}] z) {{
      low = Cast <to = 16> (x)
      rows = Gather <axis = 1> (low, i)
      y = Cast <to = 1> (rows)
      z = Neg (y)
    }}
    """


@pytest.mark.parametrize(("indices", "results"), [("3, 2", "6, 3, 2, 4"), ("1", "6, 1, 4")])
def test_a_gathered_tensor_is_cast_behind_the_gather(indices: str, results: str) -> None:
    model = parse_model(graph_of(indices, results), 22)
    graph = ov.Core().read_model(model.SerializeToString())
    repair(graph)
    (gather,) = (node for node in graph.get_ops() if node.get_type_name() == "Gather")
    readers = {reader.get_node().get_type_name() for reader in gather.output(0).get_target_inputs()}
    assert readers == {"Reshape"}
    assert [sorted(output.get_names()) for output in graph.outputs] == [["y"], ["z"]]


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize(("indices", "results"), [("3, 2", "6, 3, 2, 4"), ("1", "6, 1, 4")])
def test_it_has_the_same_values(indices: str, results: str) -> None:
    random = np.random.default_rng(0)
    shape = tuple(map(int, indices.split(",")))
    x, i = random.standard_normal((6, 5, 4), np.float32), random.integers(0, 5, shape)
    outputs = RUNTIME.load(parse_model(graph_of(indices, results), 22), "cpu").run({"x": x, "i": i})
    expected = np.take(x.astype(BF16).astype(np.float32), i, axis=1)
    np.testing.assert_array_equal(outputs["y"], expected)
    np.testing.assert_array_equal(outputs["z"], -expected)
