"""Sessions on memory of somebody else's: bound to device addresses, nothing is copied up or down."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from campo_onnx.runtime.api import Place
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load
from tests.cuda.conftest import Stub


def test_a_session_reads_and_writes_device_memory_in_place(cuda: Machine, stub: Stub) -> None:
    shape = [64, 64]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xwy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph([node], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    memory = [ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cuda", 0) for _ in "xwy"]
    x, w, y = (value.data_ptr() for value in memory)
    places = [Place(name=name, dtype=TensorProto.FLOAT, shape=(64, 64), processor="cuda") for name in "xwy"]
    session = load(model, cuda).addressed(places[:2], places[2:])
    session.run([x, w], [y])
    stub.reset()
    session.run([x, w], [y])
    session.run([w, x], [y])  # bound anew
    counts = stub.counts()
    assert counts["launches"] > 0
    assert counts["up"] == counts["down"] == 0
