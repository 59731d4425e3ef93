"""Emulated low precision where it has edges: chains, existing Casts, bodies, bits, tiny values."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from campo_onnx.emulation.numerics import emulate, relative_l2, without_underflow
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

CPU = machine("cpu", 2)


def test_every_step_of_a_chain_rounds() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[N] x) => (float[N] y) {
            a = Cast<to=10>(x)
            b = Mul(a, a)
            c = Add(b, a)
            d = Mul(c, a)
            e = Sub(d, b)
            y = Cast<to=1>(e)
        }""")
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    a = x.astype(np.float16)
    b = a * a
    actual = run(emulate(model, {"N": x.size}), {"x": x}, CPU)["y"]
    np.testing.assert_array_equal(actual, ((b + a) * a - b).astype(np.float32))


def test_low_inputs_outputs_and_constants_stay_low() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float16[2] x) => (float16[2] y) <float16[2] w = {15360, 15360}> {
            s = Add(x, w)
            y = Mul(s, s)
        }""")
    x = np.array([0.0004882812, 299.0], np.float16)
    y = run(emulate(model), {"x": x}, CPU)["y"]
    s = x + np.float16(1)  # 15360 are the bits of 1
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, s * s)
    assert np.isinf(y[1])


def test_a_cast_with_the_dropped_name_is_kept() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[1] x) => (float[1] z) {
            y = Cast<to=10>(x)
            z = Cast<to=1>(y)
        }""")
    for number, node in enumerate(model.graph.node):
        node.name = f"InsertedPrecisionFreeCast_{number}"
    x = np.array([1.0001], np.float32)
    assert run(model, {"x": x}, CPU)["z"] == x  # what would happen
    assert run(emulate(model), {"x": x}, CPU)["z"] == 1


def test_an_existing_widening_cast_is_shared() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float16[1] x) => (float[1] w, float16[1] y) {
            w = Cast<to=1>(x)
            y = Relu(x)
        }""")
    assert [n.op_type for n in emulate(model).graph.node] == ["Cast", "Relu", "Cast"]


BODY = """
    <ir_version: 10, opset_import: ["": 20]>
    g (float[1] x, bool c) => (float[1] y) {
        h = Cast<to=10>(x)
        y = If (c) <
            then_branch = t () => (float[1] a) { BODY },
            else_branch = e () => (float[1] b) { b = Identity(x) }
        >
    }"""


@pytest.mark.parametrize("body", ["a = Cast<to=1>(h)", "k = Cast<to=10>(x) a = Cast<to=1>(k)"])
def test_low_bodies_are_refused(body: str) -> None:
    with pytest.raises(UnsupportedModelError, match="inside a body"):
        emulate(parser.parse_model(BODY.replace("BODY", body)))


def test_fp32_bodies_stay() -> None:
    model = parser.parse_model(BODY.replace("BODY", "a = Neg(x)"))
    assert emulate(model).graph.node[1].attribute == model.graph.node[1].attribute


def test_bits_of_a_low_tensor_are_refused() -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT16, [1])]
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT16)
    graph = helper.make_graph([node], "g", inputs, outputs)
    with pytest.raises(UnsupportedModelError, match="BitCast"):
        emulate(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)]))


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([3.0, 4.4], [3.0, 4.0], 0.08),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan], [np.nan], 0.0),
        ([np.nan], [1.0], np.inf),
        ([1.0], [np.inf], np.inf),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], np.inf),
        ([True, False], [True, True], 0.5**0.5),
    ],
)
def test_relative_l2(actual: list[float], expected: list[float], error: float) -> None:
    assert relative_l2(np.array(actual), np.array(expected)) == pytest.approx(error)


def test_without_underflow_rounds_as_fp16_and_loses_nothing_small() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[4096] x) => (float[4096] y)
              { [down] h = Cast<to=10>(x) [keep] t = Neg(h) [up] y = Cast<to=1>(t) }"""
    emulated = emulate(onnx.parser.parse_model(text))
    generator = np.random.default_rng(0)
    x = (generator.normal(size=4096) * 10.0 ** generator.uniform(-30, 6, 4096)).astype(np.float32)
    x[:3] = np.inf, 0.0, 65520.0
    rounded, kept = (run(m, {"x": x}, CPU)["y"] for m in (emulated, without_underflow(emulated)))
    is_normal = (np.abs(x) >= 2.0**-14) | (x == 0)
    np.testing.assert_array_equal(rounded[is_normal], kept[is_normal])
    np.testing.assert_allclose(kept[~is_normal], -x[~is_normal], rtol=2.0**-11)
    assert (rounded[~is_normal] == 0).any()
