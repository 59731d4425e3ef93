"""Sessions run graphs as they are written, or say why they cannot."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from campo_onnx.errors import IndexOutOfRangeError, UnsupportedModelError
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.host_tensor import HostTensor
from campo_onnx.runtime.onnxruntime.sessions import (
    Assignment,
    assignments,
    open_session,
    placed_elsewhere,
    refused,
)
from campo_onnx.runtime.registry import load, machine, tensor, tensor_of

HERE = machine("cpu", threads=1)


def model(*nodes: onnx.NodeProto, dtype: int = TensorProto.FLOAT, opset: int = 20) -> onnx.ModelProto:
    outputs = {t for node in nodes for t in node.output}
    read = list(dict.fromkeys(t for node in nodes for t in node.input if t not in outputs))
    last = nodes[-1].output[0]
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(t, dtype, [4, 4]) for t in read],
        [helper.make_tensor_value_info(last, dtype, [4, 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op_type: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], name=f"{op_type}_{output}")


def test_nodes_are_neither_fused_nor_folded() -> None:
    chain = model(node("MatMul", ["a", "b"], "x"), node("Add", ["x", "c"], "y"), node("Identity", ["y"], "z"))
    assigned = assignments(open_session(chain, "cpu"))
    assert {a.node for a in assigned} == {"MatMul_x", "Add_y", "Identity_z"}
    assert {a.provider for a in assigned} == {"CPUExecutionProvider"}


def test_bound_step_computes() -> None:
    program = load(model(node("Add", ["a", "b"], "c")), HERE)
    one, out = np.ones((4, 4), np.float32), tensor((4, 4), TensorProto.FLOAT, HERE)
    first = tensor_of(one, HERE)
    step = program.bound({"a": first, "b": tensor_of(one, HERE)}, {"c": out})
    step()
    assert (out.read() == 2).all()
    first.write(one * 4)
    step()
    assert (out.read() == 5).all()
    assert (program.run({"a": one, "b": one})["c"] == 2).all()


def test_arrays_of_a_cpu_are_bound_without_a_copy() -> None:
    program = load(model(node("Relu", ["a"], "b")), HERE)
    array, out = np.zeros((4, 4), np.float32), tensor((4, 4), TensorProto.FLOAT, HERE)
    step = program.bound({"a": HostTensor.sharing(array)}, {"b": out})
    array += 3
    step()
    assert (out.read() == 3).all()


@pytest.mark.parametrize(
    ("operator", "said"),
    [("Gather", "indices element out of data bounds"), ("GatherElements", "Out of range")],
)
def test_a_node_that_fails_is_reported(operator: str, said: str) -> None:
    gather = model(node(operator, ["a", "i"], "b"))
    gather.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    feeds = {"a": np.ones((4, 4), np.float32), "i": np.full((4, 4), 9)}
    gather.graph.output[0].type.tensor_type.ClearField("shape")
    program = load(gather, HERE)
    with pytest.raises(IndexOutOfRangeError, match=said):
        program.placed(feeds)()
    with pytest.raises(IndexOutOfRangeError, match=said):
        program.run(feeds)


def test_sixteen_bit_inputs_are_bound() -> None:
    for dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        value = np.ones((4, 4), helper.tensor_dtype_to_np_dtype(dtype))
        program = load(model(node("Identity", ["a"], "b"), dtype=dtype), HERE)
        program.placed({"a": value})()
        out = tensor((4, 4), dtype, HERE)
        program.bound({"a": tensor_of(value, HERE)}, {"b": out})()
        assert out.read().dtype == value.dtype
        assert (out.read() == value).all()
        assert program.run({"a": value})["b"].tobytes() == value.tobytes()


def test_missing_kernel_is_reported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"cannot load the graph: .*MatMul"):
        load(model(node("MatMul", ["a", "b"], "c"), dtype=TensorProto.BFLOAT16), HERE)


def test_a_node_on_another_provider_is_found() -> None:
    on_gpu = Assignment(node="a", op_type="Relu", provider="CUDAExecutionProvider")
    on_cpu = Assignment(node="b", op_type="Relu", provider="CPUExecutionProvider")
    assert placed_elsewhere([on_gpu, on_cpu], "cuda") == (on_cpu,)
    assert placed_elsewhere([on_cpu], "cpu") == ()


def test_values_that_cannot_be_bound_are_reported() -> None:
    program = load(model(node("Add", ["a", "b"], "c")), HERE)
    one = np.ones((4, 4), np.float32)
    with pytest.raises(UnsupportedModelError, match="no tensor for the input 'b'; unknown input 'no input'"):
        program.placed({"a": one, "no input": one})
    with pytest.raises(
        UnsupportedModelError, match=r"'b' is tensor\(float\) \[4, 4\], the tensor DOUBLE \[2\]"
    ):
        program.placed({"a": one, "b": np.ones(2)})


def test_no_session_falls_back_to_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's Python layer would, and print a message to stdout."""
    seen: list[dict[str, object]] = []

    def refuse(*_: object, **words: object) -> None:
        seen.append(words)
        raise RuntimeError("libcublas.so.13 cannot be opened\nmore")

    monkeypatch.setattr(ort, "InferenceSession", refuse)
    with pytest.raises(UnsupportedModelError, match=r"libcublas\.so\.13"):
        open_session(model(node("Add", ["a", "b"], "c")), "cuda", settings=LoadSettings(captures=True))
    (words,) = seen
    assert words["enable_fallback"] == 0
    assert words["providers"] == [
        ("CUDAExecutionProvider", {"enable_cuda_graph": "1", "arena_extend_strategy": "kSameAsRequested"})
    ]


NOT_REGISTERED = "[ONNXRuntimeError] : 10 : INVALID_GRAPH : {}(-1) is not a registered function/op"


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("com.microsoft:GatedAdd", "too old"),
        ("com.microsoft:ConvGrad", "training build"),
        ("Fancy", "cannot load"),
    ],
)
def test_an_operator_that_is_not_registered(op: str, said: str) -> None:
    assert said in str(refused(RuntimeError(NOT_REGISTERED.format(op))))
