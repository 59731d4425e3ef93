import pytest

from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.random import random


@pytest.mark.parametrize(
    "source", ["RandomUniformLike(x)", "RandomNormalLike(x)", "Bernoulli(x)", "RandomUniform<shape=[4]>()"]
)
def test_random_sources_are_deny_and_contained(read, source):
    text = f"""(float[4] x) => (float[4] y, float[4] z) {{
        [r] u = {source}
        [a] y = Mul(x, u)
        [b] z = Add(u, u)
        [c] w = Tanh(x)
    }}"""
    findings = random(read(text).view, frozenset())
    assert {name: op_class for name, (op_class, _) in findings.classes.items()} == {"r": OpClass.DENY}
    assert findings.contained == {Use("a", 1), Use("b", 0), Use("b", 1)}


def test_dropout_as_one_operator_is_no_source(read):
    text = "(float[4] x) => (float[4] y) { [d] y, mask = Dropout(x) }"
    assert random(read(text).view, frozenset()).classes == {}


def test_a_comparison_with_a_draw_stays_fp32(read):
    text = """(float[4] x) => (float[4] y) <float p = {0.9}> {
        [r] u = RandomUniform<shape=[4]>()
        [keep] mask = Less(u, p)
        [other] negative = Less(x, p)
        [a] y = Where(mask, x, u)
    }"""
    findings = random(read(text).view, frozenset())
    assert {name: op_class for name, (op_class, _) in findings.classes.items()} == {
        "r": OpClass.DENY,
        "keep": OpClass.DENY,
    }
    assert findings.contained == {Use("keep", 0), Use("a", 2)}
