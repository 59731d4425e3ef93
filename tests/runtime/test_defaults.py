"""Inputs that are initializers as well: given or not, by every way of running a program."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from campo_onnx.errors import CampoError
from campo_onnx.runtime.registry import load, machine, runtimes_for, tensor_of

X = np.array([1.0, 2.0, 3.0], np.float32)
TWO, SEVEN = (np.full(3, n, np.float32) for n in (2, 7))


@pytest.fixture
def model() -> onnx.ModelProto:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x, float[3] w) => (float[3] y) { y = Mul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(TWO, "w"))
    return model


@pytest.fixture(params=[runtime.name for runtime in runtimes_for("cpu") if not runtime.problem("cpu")])
def here(request):
    return machine("cpu", 1, request.param)


@pytest.mark.parametrize(("further", "factor"), [({}, TWO), ({"w": SEVEN}, SEVEN)], ids=["left out", "given"])
def test_a_value_that_is_left_out_is_the_one_that_is_stored(model, here, further, factor) -> None:
    before = model.SerializeToString()
    program = load(model, here)
    np.testing.assert_array_equal(program.run({"x": X, **further})["y"], X * factor)
    y = tensor_of(np.zeros(3, np.float32), here)
    reads = {name: tensor_of(value, here) for name, value in {"x": X, **further}.items()}
    program.bound(reads, {"y": y})()
    np.testing.assert_array_equal(y.read(), X * factor)
    program.placed({"x": X, **further})()
    note, _, _ = program.note.partition(":")  # torch compiles no graph so small
    assert note == ("torch runs the graph operation by operation" if here.runtime == "torch" else "")
    assert model.SerializeToString() == before


def test_another_input_has_to_be_given(model, here) -> None:
    with pytest.raises(CampoError, match="x"):
        load(model, here).placed({"w": SEVEN})


def test_a_value_in_a_type_that_numpy_lacks_stays_stored(model) -> None:
    constant = onnx.helper.make_tensor("b", onnx.TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    model.graph.initializer.append(constant)
    model.graph.input.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.BFLOAT16, [3]))
    np.testing.assert_array_equal(load(model, machine("cpu", 1)).run({"x": X})["y"], X * TWO)
