"""Tensors that stay on a processor, and captured graphs."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.onnxruntime.program import OnnxProgram
from campo_onnx.runtime.registry import machine, tensor

HERE = machine("cpu", 1)


def test_room_that_no_memory_has_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="fits into no memory"):
        tensor((2**63 - 1,), TensorProto.FLOAT, HERE)


def test_slices_share_memory() -> None:
    whole = tensor((8,), TensorProto.FLOAT16, HERE)
    part = whole.slice(2, (2, 2))
    part.write(np.array([[1, 2], [3, 4]], np.float16))
    assert whole.read().tolist() == [0, 0, 1, 2, 3, 4, 0, 0]
    assert part.slice(2, (2,)).read().tolist() == [3, 4]
    with pytest.raises(ValueError, match="elements 6 to 10 of a tensor of 8"):
        whole.slice(6, (4,))


def test_outputs_outlive_the_program_and_its_inputs() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[4096] x) => (float[4096] x, float[4096] y, bfloat16[4096] b, float[4096] w, float[64, 64] m)
          <float[4096] one, int64[2] square = {64, 64}>
          { y = Neg(x) b = Cast<to = 16>(x) w = Identity(one) m = Reshape(x, square) }
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4096, np.float32), "one"))

    def once(value: float) -> dict[str, Any]:
        settings = LoadSettings(holds_memory=False)
        return OnnxProgram(model, "cpu", 1, None, settings).run({"x": np.full(4096, value, np.float32)})

    runs = [once(value) for value in range(1, 20)]
    for value, outputs in enumerate(runs, start=1):
        expected = {"x": value, "y": -value, "b": value, "w": 1, "m": value}
        assert {name: {*array.astype(np.float32).flat} for name, array in outputs.items()} == {
            name: {float(number)} for name, number in expected.items()
        }
        outputs["m"][:] = 0.0  # of its own memory
        assert outputs["x"][0] == value


def test_each_binding_of_a_captured_step_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    feeds = {"x": np.ones(2, np.float32)}
    for settings in (LoadSettings(), LoadSettings(captures=True)):
        program = OnnxProgram(model, "cpu", 1, None, settings)
        steps = [program.placed(feeds) for _ in range(2)]
        program.session.run_with_iobinding = lambda binding, options: seen.append(options)
        for step in (*steps, *steps):
            step()
    numbers = [options and options.get_run_config_entry("gpu_graph_id") for options in seen]
    assert numbers == [None] * 4 + ["1", "2"] * 2
