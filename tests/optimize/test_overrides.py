"""Overrides that match nothing in the graph."""

import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.overrides import unmatched

GRAPH = """g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
    [encoder_product] h = MatMul(x, w)
    [activation] r = Relu(h)
    [fused] y = com.microsoft.Gelu(r)
}"""


@pytest.fixture
def view(model_text):
    return import_model(model_text(GRAPH)).view


def test_overrides_that_match_say_nothing(view):
    operators = {"--deny": ["MatMul", "ai.onnx:Relu"], "--allow": ["com.microsoft:Gelu"]}
    assert unmatched(view, operators=operators, keep_fp32=["encoder_.*", "Relu", "com.microsoft:.*"]) == ()


@pytest.mark.parametrize(
    ("operators", "keep_fp32", "message"),
    [
        ({"--deny": ["MatMull"]}, (), "--deny MatMull matches no node of the graph. Did you mean 'MatMul'?"),
        ({"--allow": ["Conv"]}, (), "--allow Conv matches no node of the graph."),
        (
            {},
            ("activatoin",),
            "--keep-fp32 activatoin matches no node of the graph. Did you mean 'activation'?",
        ),
        ({}, ("encoder",), "It matches a part of 'encoder_product'; a whole name has to match, so add '.*'."),
        ({}, ("nosuchnode",), "--keep-fp32 nosuchnode matches no node of the graph."),
    ],
)
def test_others_are_named_with_a_suggestion(view, operators, keep_fp32, message):
    (found,) = unmatched(view, operators=operators, keep_fp32=keep_fp32)
    assert found.endswith(message)
