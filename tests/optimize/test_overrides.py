"""Overrides that match nothing in the graph."""

import signal
from types import SimpleNamespace

import pytest

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize import name_patterns
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.overrides import unmatched

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
    (text,) = unmatched(view, operators=operators, keep_fp32=keep_fp32)
    assert text.endswith(message)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such clock there")
def test_expressions_that_take_for_ever(monkeypatch):
    monkeypatch.setattr(name_patterns, "MATCH_LIMIT_S", 0.05)
    with pytest.raises(UsageError, match="takes more than"):
        name_patterns.matching([name_patterns.pattern_of("(a+)+$")], ["a" * 60 + "!"])
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


@pytest.mark.parametrize("text", ["(" * 5000 + ")" * 5000, "a{99999999999}", "["])
def test_expressions_that_are_none(text):
    with pytest.raises(UsageError, match="is not a regular expression"):
        name_patterns.pattern_of(text)


def test_of_thousands_of_misspelt_operators_a_few_are_named(view):
    named = {OpClass.DENY: frozenset(OpKey("", f"O{i}") for i in range(5000))}
    said = unmatched(view, operators={}, lists=SimpleNamespace(name="mine", tables=named))
    assert len(said) == 21
    assert said[-1].endswith("name 4980 more operators that ONNX does not define.")
